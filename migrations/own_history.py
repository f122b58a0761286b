"""The parts of the library's tables as functions for an application's own Alembic history."""

from __future__ import annotations

from alembic import op
from alembic.operations import Operations

from idempotent.migrations.drift import refuse_foreign
from idempotent.migrations.versions import r0001_create_tables as initial
from idempotent.schema import DEFAULT_TABLE, validate_table_name


def create_dedup_table(*, table: str = DEFAULT_TABLE) -> None:
    """Create the tables of checkers; call it in ``upgrade()`` of your own migration.

    It always creates the tables as revision 0001 of the library does, so your history keeps its meaning. Existing
    tables that are equal are kept.

    Raises:
        SchemaError: another table has one of the names. Nothing was changed.
        ConfigurationError: the table name is invalid.
    """
    _create(table, initial.define_keys)


def drop_dedup_table(*, table: str = DEFAULT_TABLE) -> None:
    """Drop the tables of checkers with all their keys; call it in ``downgrade()`` of your own migration.

    Raises:
        ConfigurationError: the table name is invalid.
    """
    _drop(table, initial.define_keys)


def create_run_tables(*, table: str = DEFAULT_TABLE) -> None:
    """Create the tables of the run ledger of `table`; call it in ``upgrade()`` of your own migration.

    Only Spark needs them. It always creates the tables as revision 0001 of the library does. Existing tables that are
    equal are kept.

    Raises:
        SchemaError: another table has one of the names. Nothing was changed.
        ConfigurationError: the table name is invalid.
    """
    _create(table, initial.define_runs)


def drop_run_tables(*, table: str = DEFAULT_TABLE) -> None:
    """Drop the tables of the run ledger with all their claims; call it in ``downgrade()`` of your own migration.

    Raises:
        ConfigurationError: the table name is invalid.
    """
    _drop(table, initial.define_runs)


def create_outbox_tables(*, table: str = DEFAULT_TABLE) -> None:
    """Create the tables of the outbox of `table`; call it in ``upgrade()`` of your own migration.

    Only an outbox needs them. It always creates the tables as revision 0001 of the library does. Existing tables that
    are equal are kept.

    Raises:
        SchemaError: another table has one of the names. Nothing was changed.
        ConfigurationError: the table name is invalid.
    """
    _create(table, initial.define_outbox)


def drop_outbox_tables(*, table: str = DEFAULT_TABLE) -> None:
    """Drop the tables of the outbox with all messages; call it in ``downgrade()`` of your own migration.

    Raises:
        ConfigurationError: the table name is invalid.
    """
    _drop(table, initial.define_outbox)


def _create(table: str, part: initial.Part) -> None:
    validate_table_name(table)
    context = op.get_context()
    refuse_foreign(context, initial.tables(table, part))
    initial.upgrade(Operations(context), table, part)


def _drop(table: str, part: initial.Part) -> None:
    validate_table_name(table)
    initial.downgrade(Operations(op.get_context()), table, part)
