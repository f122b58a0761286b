"""The library's revisions as functions for an application's own Alembic history."""

from __future__ import annotations

from alembic import op
from alembic.operations import Operations

from idempotent.migrations.drift import refuse_foreign
from idempotent.migrations.versions import r0001_create_tables as first
from idempotent.migrations.versions import r0002_create_run_tables as second
from idempotent.migrations.versions import r0003_add_run_attempts as third
from idempotent.migrations.versions import r0004_create_outbox_tables as fourth
from idempotent.schema import DEFAULT_TABLE, validate_table_name


def create_dedup_table(*, table: str = DEFAULT_TABLE) -> None:
    """Create the tables; call it in ``upgrade()`` of your own migration.

    It always creates the tables of revision 0001 of the library, so your history keeps its meaning. Each later
    revision has its own function, such as `create_run_tables`. Existing tables that are equal are kept.

    Raises:
        SchemaError: another table has that name. Nothing was changed.
        ConfigurationError: the table name is invalid.
    """
    validate_table_name(table)
    context = op.get_context()
    refuse_foreign(context, first.tables(table))
    first.upgrade(Operations(context), table)


def drop_dedup_table(*, table: str = DEFAULT_TABLE) -> None:
    """Drop the tables with all their keys; call it in ``downgrade()`` of your own migration.

    Raises:
        ConfigurationError: the table name is invalid.
    """
    validate_table_name(table)
    first.downgrade(Operations(op.get_context()), table)


def create_run_tables(*, table: str = DEFAULT_TABLE) -> None:
    """Create the tables of the run ledger of `table`; call it in ``upgrade()`` of your own migration.

    Only Spark needs them. It always creates the tables of revision 0002 of the library; `add_run_attempts` is revision
    0003. Existing tables that are equal, with or without the columns of revision 0003, are kept.

    Raises:
        SchemaError: another table has one of the names. Nothing was changed.
        ConfigurationError: the table name is invalid.
    """
    validate_table_name(table)
    context = op.get_context()
    refuse_foreign(context, third.tables(table))
    second.upgrade(Operations(context), table)


def drop_run_tables(*, table: str = DEFAULT_TABLE) -> None:
    """Drop the tables of the run ledger with all their claims; call it in ``downgrade()`` of your own migration.

    Raises:
        ConfigurationError: the table name is invalid.
    """
    validate_table_name(table)
    second.downgrade(Operations(op.get_context()), table)


def add_run_attempts(*, table: str = DEFAULT_TABLE) -> None:
    """Add the columns of revision 0003 to the run ledger of `table`; call it in ``upgrade()`` of your own migration.

    Raises:
        SchemaError: another table has one of the names. Nothing was changed.
        ConfigurationError: the table name is invalid.
    """
    validate_table_name(table)
    context = op.get_context()
    refuse_foreign(context, third.tables(table))
    third.upgrade(Operations(context), table)


def remove_run_attempts(*, table: str = DEFAULT_TABLE) -> None:
    """Remove the columns of revision 0003; call it in ``downgrade()`` of your own migration.

    Raises:
        ConfigurationError: the table name is invalid.
    """
    validate_table_name(table)
    third.downgrade(Operations(op.get_context()), table)


def create_outbox_tables(*, table: str = DEFAULT_TABLE) -> None:
    """Create the tables of the outbox of `table`; call it in ``upgrade()`` of your own migration.

    Only an outbox needs them. It always creates the tables of revision 0004 of the library. Existing tables that are
    equal are kept.

    Raises:
        SchemaError: another table has one of the names. Nothing was changed.
        ConfigurationError: the table name is invalid.
    """
    validate_table_name(table)
    context = op.get_context()
    refuse_foreign(context, fourth.tables(table))
    fourth.upgrade(Operations(context), table)


def drop_outbox_tables(*, table: str = DEFAULT_TABLE) -> None:
    """Drop the tables of the outbox with all messages; call it in ``downgrade()`` of your own migration.

    Raises:
        ConfigurationError: the table name is invalid.
    """
    validate_table_name(table)
    fourth.downgrade(Operations(op.get_context()), table)
