"""Create the tables of keys: those of revision 0001 of `idempotent migrate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.db import migrations, router
from django.db.migrations.operations.base import Operation
from sqlalchemy import Table
from sqlalchemy.schema import CreateIndex, CreateTable, DDLElement, DropTable

from idempotent.adapters.django.database import Database
from idempotent.migrations.versions import r0001_create_tables as initial
from idempotent.schema import DEFAULT_TABLE


class CreateKeyTables(Operation):  # type: ignore[misc] # Django ships no types
    """Create what is missing of the tables: MySQL keeps each one, if a later statement of the migration fails."""

    reduces_to_sql = True
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """No models."""

    def database_forwards(self, app_label: str, schema_editor: Any, *_: Any) -> None:
        """Create them."""
        connection = schema_editor.connection
        if router.allow_migrate(connection.alias, app_label):
            for statement in _creating(connection):
                _execute(schema_editor, statement)

    def database_backwards(self, app_label: str, schema_editor: Any, *_: Any) -> None:
        """Drop them, with all keys."""
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            for table in _tables():
                _execute(schema_editor, DropTable(table, if_exists=True))

    def describe(self) -> str:
        """What Django shows."""
        return "Create the tables of idempotency keys"


def _tables() -> list[Table]:
    return [*initial.tables(DEFAULT_TABLE, initial.define_keys).tables.values()]


def _creating(connection: Any) -> Iterator[DDLElement | str]:
    look = connection.introspection
    with connection.cursor() as cursor:
        there = look.table_names(cursor)
        for table in _tables():
            known = look.get_constraints(cursor, table.name) if table.name in there else {}
            if table.name not in there:
                yield CreateTable(table)
                if connection.vendor == "postgresql" and table.info:
                    yield f'ALTER TABLE "{table.name}" SET (fillfactor = {table.info["fillfactor"]})'
            yield from (CreateIndex(index) for index in table.indexes if index.name not in known)


def _execute(schema_editor: Any, statement: DDLElement | str) -> None:
    dialect = Database(schema_editor.connection.alias).engine.dialect
    text = statement if isinstance(statement, str) else str(statement.compile(dialect=dialect)).strip()
    schema_editor.execute(text, params=None)


class Migration(migrations.Migration):  # type: ignore[misc] # Django ships no types
    """The first one."""

    initial: Final = True
    dependencies: Final[list[tuple[str, str]]] = []
    operations: Final = [CreateKeyTables()]
