"""Create the tables of keys: those of revision 0001 of `idempotent migrate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.db import migrations, models, router
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
        """Those are made beside it."""

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
    look, is_mysql = connection.introspection, connection.vendor == "mysql"
    with connection.cursor() as cursor:
        there = look.table_names(cursor)
        for table in _tables():
            if table.name not in there:
                yield CreateTable(table)
                if connection.vendor == "postgresql" and table.info:
                    yield f'ALTER TABLE "{table.name}" SET (fillfactor = {table.info["fillfactor"]})'
            # MySQL has no IF NOT EXISTS for them.
            known = look.get_constraints(cursor, table.name) if is_mysql and table.name in there else {}
            for index in table.indexes:
                if index.name not in known:
                    yield CreateIndex(index, if_not_exists=not is_mysql)


def _execute(schema_editor: Any, statement: DDLElement | str) -> None:
    dialect = Database(schema_editor.connection.alias).engine.dialect
    text = statement if isinstance(statement, str) else str(statement.compile(dialect=dialect)).strip()
    schema_editor.execute(text, params=None)


_STATE: Final = [
    migrations.CreateModel(
        "Key",
        [
            ("key_hash", models.BinaryField(primary_key=True, serialize=False)),
            ("k", models.CharField(max_length=255)),
            ("status", models.SmallIntegerField()),
            ("owner", models.BinaryField()),
            ("fence", models.BigIntegerField()),
            ("lease_until", models.BigIntegerField(null=True)),
            ("fingerprint", models.BinaryField(null=True)),
            ("result", models.BinaryField(null=True)),
            ("update_at", models.BigIntegerField()),
            ("expires_at", models.BigIntegerField()),
        ],
        {"db_table": "deduplicate_tbl", "default_permissions": ()},
    ),
    migrations.CreateModel(
        "Failure",
        [
            ("key_hash", models.BinaryField(primary_key=True, serialize=False)),
            ("k", models.CharField(max_length=255)),
            ("attempts", models.IntegerField()),
            ("last_error", models.CharField(max_length=1000)),
            ("update_at", models.BigIntegerField()),
            ("expires_at", models.BigIntegerField()),
        ],
        {"db_table": "deduplicate_tbl_failures", "default_permissions": ()},
    ),
]


class Migration(migrations.Migration):  # type: ignore[misc] # Django ships no types
    """The first one."""

    initial: Final = True
    dependencies: Final[list[tuple[str, str]]] = []
    operations: Final = [migrations.SeparateDatabaseAndState([CreateKeyTables()], _STATE)]
