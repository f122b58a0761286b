"""For an application's own Alembic history: create and drop the library's tables there, or have it ignore them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alembic import op
from alembic.operations import Operations
from sqlalchemy import MetaData

from idempotent.migrations.drift import refuse_foreign
from idempotent.migrations.tables import Catalogue, refuse_elsewhere
from idempotent.migrations.versions import r0001_create_tables as initial
from idempotent.schema import (
    DEFAULT_TABLE,
    dedup_tables,
    outbox_tables,
    run_tables,
    validate_table_name,
    version_name,
)

IncludeObject = Callable[[Any, str | None, Any, bool, Any], bool]
"""The signature of Alembic's ``include_object`` hook: object, name, type, reflected, compare_to."""


def create_dedup_table(*, table: str = DEFAULT_TABLE) -> None:
    """Create the tables of checkers; call it in ``upgrade()`` of your own migration.

    It always creates the tables as revision 0001 of the library does, so your history keeps its meaning. Existing
    tables that are equal are kept.

    Raises:
        SchemaError: another table has one of the names, or PostgreSQL finds one in another schema. Nothing was changed.
        ConfigurationError: the table name is invalid.
    """
    _create(table, initial.define_keys)


def drop_dedup_table(*, table: str = DEFAULT_TABLE) -> None:
    """Drop the tables of checkers with all their keys; call it in ``downgrade()`` of your own migration.

    Raises:
        SchemaError: PostgreSQL finds one of them in another schema. Nothing was changed.
        ConfigurationError: the table name is invalid.
    """
    _drop(table, initial.define_keys)


def create_run_tables(*, table: str = DEFAULT_TABLE) -> None:
    """Create the tables of the run ledger of `table`; call it in ``upgrade()`` of your own migration.

    Only Spark needs them. It always creates the tables as revision 0001 of the library does. Existing tables that are
    equal are kept.

    Raises:
        SchemaError: another table has one of the names, or PostgreSQL finds one in another schema. Nothing was changed.
        ConfigurationError: the table name is invalid.
    """
    _create(table, initial.define_runs)


def drop_run_tables(*, table: str = DEFAULT_TABLE) -> None:
    """Drop the tables of the run ledger with all their claims; call it in ``downgrade()`` of your own migration.

    Raises:
        SchemaError: PostgreSQL finds one of them in another schema. Nothing was changed.
        ConfigurationError: the table name is invalid.
    """
    _drop(table, initial.define_runs)


def create_outbox_tables(*, table: str = DEFAULT_TABLE) -> None:
    """Create the tables of the outbox of `table`; call it in ``upgrade()`` of your own migration.

    Only an outbox needs them. It always creates the tables as revision 0001 of the library does. Existing tables that
    are equal are kept.

    Raises:
        SchemaError: another table has one of the names, or PostgreSQL finds one in another schema. Nothing was changed.
        ConfigurationError: the table name is invalid.
    """
    _create(table, initial.define_outbox)


def drop_outbox_tables(*, table: str = DEFAULT_TABLE) -> None:
    """Drop the tables of the outbox with all messages; call it in ``downgrade()`` of your own migration.

    Raises:
        SchemaError: PostgreSQL finds one of them in another schema. Nothing was changed.
        ConfigurationError: the table name is invalid.
    """
    _drop(table, initial.define_outbox)


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


def _create(table: str, part: initial.Part) -> None:
    validate_table_name(table)
    context = op.get_context()
    refuse_foreign(context, initial.tables(table, part))
    find = {} if context.as_sql else {"find": Catalogue(op.get_bind()).find}
    initial.upgrade(Operations(context), table, part, **find)


def _drop(table: str, part: initial.Part) -> None:
    validate_table_name(table)
    context = op.get_context()
    if not context.as_sql:
        refuse_elsewhere(op.get_bind(), [*initial.tables(table, part).tables])
    initial.downgrade(Operations(context), table, part)
