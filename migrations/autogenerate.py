"""Make an application's autogenerate ignore the tables that the library manages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import MetaData

from idempotent.schema import DEFAULT_TABLE, dedup_tables, outbox_tables, run_tables, version_name

IncludeObject = Callable[[Any, str | None, Any, bool, Any], bool]
"""The signature of Alembic's ``include_object`` hook: object, name, type, reflected, compare_to."""


def ignore_dedup_tables(*tables: str, include_object: IncludeObject | None = None) -> IncludeObject:
    """Return an ``include_object`` hook with which autogenerate neither creates, alters nor drops the library's tables.

    Use it in env.py: ``context.configure(..., include_object=ignore_dedup_tables())``.

    Args:
        tables: the names in use, by default ``deduplicate_tbl``; their failures, offsets, runs, run claims, outbox and
            version tables are covered too.
        include_object: the application's own hook, called for everything else.

    Raises:
        ConfigurationError: a table name is invalid.
    """
    ours = MetaData()
    names = tables or (DEFAULT_TABLE,)
    for table in names:
        for define in (dedup_tables, run_tables, outbox_tables):
            define(ours, table)
    covered = {*ours.tables, *map(version_name, names)}

    def hook(item: Any, name: str | None, type_: Any, reflected: bool, compare_to: Any) -> bool:  # noqa: FBT001 - Alembic calls it so
        if type_ == "table" and name in covered and item.schema is None:
            return False
        return include_object is None or include_object(item, name, type_, reflected, compare_to)

    return hook
