"""The revisions: those that this version of the library has, and the one that is recorded in a store."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from idempotent.schema import version_name


def scripts() -> ScriptDirectory:
    """The revisions in the installed package."""
    return ScriptDirectory(str(files("idempotent.migrations")))


def known() -> list[str]:
    """Their numbers."""
    return sorted(entry.revision for entry in scripts().walk_revisions())


def options(table: str) -> dict[str, Any]:
    """Alembic's options for the history of `table`."""
    return {"version_table": version_name(table)}


def recorded(connection: Connection, table: str, schema: str | None = None) -> str | None:
    """The revision that is recorded in the store; None: none is. `schema`: see `Catalogue`."""
    where = {**options(table), "version_table_schema": schema}
    return MigrationContext.configure(connection, opts=where).get_current_revision()


def is_newer(revision: str | None) -> bool:
    """Whether a recorded revision is one of a newer version of the library."""
    return revision is not None and revision not in known()
