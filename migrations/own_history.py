"""The same steps inside an application's own Alembic history."""

from __future__ import annotations

from alembic import op
from alembic.operations import Operations

from idempotent.migrations.drift import refuse_foreign
from idempotent.migrations.versions import r0001_create_tables as first
from idempotent.migrations.versions import r0002_create_run_tables as second
from idempotent.schema import DEFAULT_TABLE, validate_table_name


def create_dedup_table(*, table: str = DEFAULT_TABLE) -> None:
    """Create the tables; call it in ``upgrade()`` of a migration of your own.

    It makes what revision 0001 of the library makes, for ever, so your history stays what it was. A later
    revision has a function of its own, like `create_run_tables`. Tables that are there already and equal are kept.

    Raises SchemaError if a table of that name is not ours, ConfigurationError for an invalid name.
    """
    validate_table_name(table)
    context = op.get_context()
    refuse_foreign(context, first.tables(table))
    first.upgrade(Operations(context), table)


def drop_dedup_table(*, table: str = DEFAULT_TABLE) -> None:
    """Drop the tables with all their keys; call it in ``downgrade()`` of a migration of your own.

    Raises ConfigurationError for an invalid name.
    """
    validate_table_name(table)
    first.downgrade(Operations(op.get_context()), table)


def create_run_tables(*, table: str = DEFAULT_TABLE) -> None:
    """Create the tables of the run ledger beside `table`; call it in ``upgrade()`` of a migration of your own.

    Only Spark needs them. It makes what revision 0002 of the library makes, for ever. Tables that are there
    already and equal are kept.

    Raises what `create_dedup_table` raises.
    """
    validate_table_name(table)
    context = op.get_context()
    refuse_foreign(context, second.tables(table))
    second.upgrade(Operations(context), table)


def drop_run_tables(*, table: str = DEFAULT_TABLE) -> None:
    """Drop the tables of the run ledger with all their claims; call it in ``downgrade()`` of a migration of your own.

    Raises ConfigurationError for an invalid name.
    """
    validate_table_name(table)
    second.downgrade(Operations(op.get_context()), table)
