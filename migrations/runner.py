"""Run the packaged revisions without Alembic's process-wide proxies, config files and logging set-up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any, Final

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, Table, inspect

from idempotent.errors import ConfigurationError, SchemaError
from idempotent.migrations.drift import refuse_foreign, refuse_incomplete
from idempotent.migrations.store import Target, bridged, connect, exclusive
from idempotent.migrations.versions import r0001_create_tables as initial
from idempotent.schema import DEFAULT_TABLE, validate_table_name, version_name

HEAD: Final = "head"
BASE: Final = "base"


@bridged
def upgrade(
    target: Target, *, table: str = DEFAULT_TABLE, revision: str = HEAD, create_missing: bool = False
) -> None:
    """Bring the tables in the store at `target` up to `revision`; do nothing when they are there already.

    Processes that call it at the same time take turns. Existing tables that equal those of the migration (an
    application's own history created them, or an earlier run was killed half-way) are kept, and the revision is
    recorded.

    Args:
        target: where the tables are, an engine, a connection or a URL.
        table: the key table.
        revision: where to stop.
        create_missing: create missing tables of recorded revisions, empty: the rows that were in them are lost.

    Raises:
        SchemaError: another table has that name (QMQ's own, for instance), a table or column of a recorded revision is
            missing, or a newer version of this library created the tables. Nothing was changed.
        ConfigurationError: the table name or the revision is invalid, or the database is not supported.
        StoreBusyError: another migration did not end within LOCK_TIMEOUT_S.
        SQLAlchemyError: the database failed or is unreachable.
    """
    validate_table_name(table)
    script = scripts()
    _known(script, revision, HEAD)
    with exclusive(target, table) as connection:
        # Private, but Alembic's own upgrade command calls it; the public form needs process-wide proxies.
        steps = partial(script._upgrade_revs, revision)  # noqa: SLF001
        run(_context(connection, table, script, steps), table, create_missing=create_missing)


@bridged
def downgrade(target: Target, *, table: str = DEFAULT_TABLE, revision: str = BASE) -> None:
    """Take the tables in the store at `target` back to `revision`; ``"base"`` removes them and all keys.

    Tables without a recorded revision (an application's own history created them) are left unchanged.

    Raises:
        SchemaError: a newer version of this library created the tables. Nothing was changed.
        ConfigurationError: the table name or the revision is invalid, or the database is not supported.
        StoreBusyError: another migration did not end within LOCK_TIMEOUT_S.
        SQLAlchemyError: the database failed or is unreachable.
    """
    validate_table_name(table)
    script = scripts()
    _known(script, revision, BASE)
    with exclusive(target, table) as connection:
        steps = partial(script._downgrade_revs, revision)  # noqa: SLF001 - as in upgrade
        context = _context(connection, table, script, steps)
        if context.get_current_heads():
            context.run_migrations(op=Operations(context), table=table)
        if not context.get_current_heads():
            Table(version_name(table), MetaData()).drop(connection, checkfirst=True)


@bridged
def current(target: Target, *, table: str = DEFAULT_TABLE) -> str | None:
    """The revision that `upgrade` recorded in the store at `target`; None without a recorded revision. Only reads.

    Raises:
        ConfigurationError: the table name is invalid, or the database is not supported.
        SQLAlchemyError: the database failed or is unreachable.
    """
    validate_table_name(table)
    with connect(target) as connection:
        return MigrationContext.configure(connection, opts=options(table)).get_current_revision()


def scripts() -> ScriptDirectory:
    """The revisions in the installed package."""
    return ScriptDirectory(str(files("idempotent.migrations")))


def options(table: str) -> dict[str, Any]:
    """Alembic's options for the history of `table`."""
    return {"version_table": version_name(table)}


def run(context: MigrationContext, table: str, *, create_missing: bool = False) -> None:
    """Run the steps of `context`, after checking the tables that exist, or should."""
    operations = Operations(context)
    if not context.as_sql:
        tables = initial.tables(table)
        if not context.get_current_heads():
            refuse_foreign(context, tables)
        else:
            if create_missing:
                existing = inspect(operations.get_bind()).get_table_names()
                for name, definition in tables.tables.items():
                    if name not in existing:
                        initial.create(operations, definition)
            refuse_incomplete(context, tables, table)
    context.run_migrations(op=operations, table=table)


def _context(
    connection: Connection, table: str, script: ScriptDirectory, steps: Callable[[Any], Any]
) -> MigrationContext:
    def steps_from(heads: Any, _: MigrationContext) -> Any:
        return steps(heads)

    context = MigrationContext.configure(connection, opts={**options(table), "fn": steps_from})
    known = _revisions(script)
    for head in context.get_current_heads():
        if head not in known:
            raise SchemaError(
                f"table {table!r} is at revision {head!r}, unknown to this version of idempotent-consumer "
                f"(it knows {', '.join(known)}): a newer version created it. Nothing was changed. "
                "Update idempotent-consumer"
            )
    return context


def _known(script: ScriptDirectory, revision: str, end: str) -> None:
    known = [end, *_revisions(script)]
    if revision not in known:
        raise ConfigurationError(f"unknown revision {revision!r}: use one of {', '.join(known)}")


def _revisions(script: ScriptDirectory) -> list[str]:
    return sorted(entry.revision for entry in script.walk_revisions())
