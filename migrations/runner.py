"""Run the packaged revisions without Alembic's process-wide proxies, config files and logging set-up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, MetaData, Table

from idempotent.errors import ConfigurationError, SchemaError
from idempotent.logs import EventLog
from idempotent.migrations.drift import (
    refuse_foreign,
    refuse_incomplete,
    refuse_lacking,
)
from idempotent.migrations.revisions import is_newer, known, options, recorded, scripts
from idempotent.migrations.store import Target, bridged, connect, exclusive
from idempotent.migrations.tables import Catalogue, home_of
from idempotent.migrations.versions import r0001_create_tables as initial
from idempotent.schema import DEFAULT_TABLE, validate_table_name, version_name

log = EventLog(__name__)
HEAD: Final = "head"
BASE: Final = "base"


@bridged
def upgrade(
    target: Target, *, table: str = DEFAULT_TABLE, revision: str = HEAD, create_missing: bool = False
) -> None:
    """Bring the tables in the store at `target` up to `revision`; do nothing when they are there already.

    Processes that call it at the same time take turns. Existing tables that equal those of the migration (an
    application's own history created them, or an earlier run was killed half-way) are kept, and the revision is
    recorded. A database that a newer version of the library has migrated is left as it is, if it has all that this
    version needs.

    Args:
        target: where the tables are, an engine, a connection or a URL.
        table: the key table.
        revision: where to stop.
        create_missing: create missing tables of recorded revisions, empty: the rows that were in them are lost.

    Raises:
        SchemaError: another table has that name (QMQ's own, for instance), a table or column of a recorded revision is
            missing, a newer version of this library has removed what this one needs, or PostgreSQL finds tables in
            another schema than that in which it would make them. Nothing was changed.
        ConfigurationError: the table name or the revision is invalid, or the database is not supported.
        StoreBusyError: another migration did not end within LOCK_TIMEOUT_S.
        SQLAlchemyError: the database failed or is unreachable.
    """
    validate_table_name(table)
    script = scripts()
    _demand_known(revision, HEAD)
    with exclusive(target, table) as connection:
        found = recorded(connection, table)
        if is_newer(found):
            refuse_lacking(connection, table)
            log.info("schema_of_newer_version", extra={"table": table, "revision": found})
            return
        # Private, but Alembic's own upgrade command calls it; the public form needs process-wide proxies.
        steps = partial(script._upgrade_revs, revision)  # noqa: SLF001
        run(_context(connection, table, steps), table, create_missing=create_missing)


@bridged
def downgrade(target: Target, *, table: str = DEFAULT_TABLE, revision: str = BASE) -> None:
    """Take the tables in the store at `target` back to `revision`; ``"base"`` removes them and all keys.

    Tables without a recorded revision (an application's own history created them) are left unchanged.

    Raises:
        SchemaError: a newer version of this library created the tables, or PostgreSQL finds them in another schema than
            that in which it would make them. Nothing was changed.
        ConfigurationError: the table name or the revision is invalid, or the database is not supported.
        StoreBusyError: another migration did not end within LOCK_TIMEOUT_S.
        SQLAlchemyError: the database failed or is unreachable.
    """
    validate_table_name(table)
    script = scripts()
    _demand_known(revision, BASE)
    with exclusive(target, table) as connection:
        found = recorded(connection, table)
        if is_newer(found):
            raise SchemaError(
                f"table {table!r} is at revision {found!r}, unknown to this version of idempotent-consumer (it knows "
                f"{', '.join(known())}): a newer version made it. Nothing was changed. Use the newer version"
            )
        steps = partial(script._downgrade_revs, revision)  # noqa: SLF001 - as in upgrade
        context = _context(connection, table, steps)
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
        return recorded(connection, table, home_of(connection, table))


def run(context: MigrationContext, table: str, *, create_missing: bool = False) -> None:
    """Run the steps of `context`, after checking the tables that exist, or should."""
    operations = Operations(context)
    found: dict[str, Any] = {}
    if not context.as_sql:
        tables = initial.tables(table)
        if not context.get_current_heads():
            refuse_foreign(context, tables)
        else:
            if create_missing:
                catalogue = Catalogue(operations.get_bind())
                for name, definition in tables.tables.items():
                    if catalogue.find(name) is None:
                        initial.create(operations, definition)
            refuse_incomplete(context, tables, table)
        found = {"find": Catalogue(operations.get_bind()).find}
    context.run_migrations(op=operations, table=table, **found)


def _context(connection: Connection, table: str, steps: Callable[[Any], Any]) -> MigrationContext:
    def steps_from(heads: Any, _: MigrationContext) -> Any:
        return steps(heads)

    return MigrationContext.configure(connection, opts={**options(table), "fn": steps_from})


def _demand_known(revision: str, end: str) -> None:
    choice = [end, *known()]
    if revision not in choice:
        raise ConfigurationError(f"unknown revision {revision!r}: use one of {', '.join(choice)}")
