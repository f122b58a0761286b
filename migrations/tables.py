"""The tables in a store, as the database's own catalogue describes them, and as a definition wants them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from sqlalchemy import Connection, Dialect, Table, inspect, text
from sqlalchemy.engine.reflection import Inspector

from idempotent.errors import SchemaError
from idempotent.stores.sql.faults import option_for

_MYSQL: Final = ("mysql", "mariadb")
# MariaDB writes the width in which an integer is shown.
_SHOWN_WIDTH: Final = re.compile(r"(?<=INT)\(\d+\)")
# Not SHOW CREATE TABLE, which SQLAlchemy reads: it depends on sql_mode and sql_quote_show_create.
_MYSQL_COLUMNS: Final = text(
    "SELECT LOWER(column_name), column_type, character_set_name, collation_name, is_nullable, column_default, extra"
    " FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = :name ORDER BY ordinal_position"
)
_MYSQL_INDEXES: Final = text(
    "SELECT index_name, non_unique, LOWER(column_name), sub_part FROM information_schema.statistics"
    " WHERE table_schema = DATABASE() AND table_name = :name ORDER BY index_name, seq_in_index"
)
_MYSQL_ENGINE: Final = text(
    "SELECT engine FROM information_schema.tables"
    " WHERE table_schema = DATABASE() AND table_name = :name AND table_type = 'BASE TABLE'"
)
# Where a session finds tables: a temporary one is not the library's.
_VISIBLE: Final = text(
    "SELECT c.relname, n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relname = ANY(:names) AND c.relkind IN ('r', 'p') AND pg_catalog.pg_table_is_visible(c.oid)"
    " AND n.oid <> pg_catalog.pg_my_temp_schema()"
)


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One column.

    Attributes:
        type: its type in SQL.
        nullable: whether it takes NULL.
        given: whether the database has a value for it if an INSERT has none: a default, or the next number.
    """

    type: str
    nullable: bool
    given: bool


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One table.

    Attributes:
        columns: by their names.
        key: the columns of the primary key.
        indexes: whether each is unique, and its columns; unique constraints among them.
        engine: MySQL's storage engine; empty: another database.
    """

    columns: dict[str, ColumnFacts]
    key: list[str]
    indexes: dict[str, tuple[bool, list[str]]]
    engine: str = ""


class Catalogue:
    """What a connection finds in the database. An object sees each table once: use a new one after a change.

    Args:
        connection: to the database.
        schema: PostgreSQL's schema; None: that in which the connection makes tables.
    """

    def __init__(self, connection: Connection, schema: str | None = None) -> None:
        self.connection = connection
        self._is_postgresql = connection.dialect.name == "postgresql"
        if self._is_postgresql and schema is None:
            # Not the dialect's default_schema_name, which is that of the engine's first connection.
            schema = connection.scalar(text("SELECT pg_catalog.current_schema()"))
        self.schema = schema

    def find(self, name: str) -> TableFacts | None:
        """One table; None: it is not there, or this user has no right on it."""
        if self.connection.dialect.name in _MYSQL:
            return self._find_in_mysql(name)
        if name not in self._names:
            return None
        inspector, dialect = self._inspector, self.connection.dialect
        found = inspector.get_columns(name, schema=self.schema)
        columns = {
            self._folded(column["name"]): ColumnFacts(
                _sql(column["type"], dialect),
                column["nullable"],
                # SQLite numbers the rows of an INTEGER PRIMARY KEY.
                any(map(column.get, ("default", "identity", "computed")))
                or (dialect.name == "sqlite" and bool(column.get("primary_key"))),
            )
            for column in found
        }
        indexes: Any = [
            *inspector.get_indexes(name, schema=self.schema),
            *(
                {**each, "unique": True}
                for each in inspector.get_unique_constraints(name, schema=self.schema)
            ),
        ]
        return TableFacts(
            columns,
            [
                *map(
                    self._folded, inspector.get_pk_constraint(name, schema=self.schema)["constrained_columns"]
                )
            ],
            {
                each["name"] or "": (
                    bool(each["unique"]),
                    [self._folded(str(name)) for name in each["column_names"]],
                )
                for each in indexes
            },
        )

    def elsewhere(self, names: Iterable[str]) -> dict[str, str]:
        """Those of the tables that the connection finds in another schema, each with that schema."""
        if not self._is_postgresql:
            return {}
        rows = self.connection.execute(_VISIBLE, {"names": [*names]})
        return {name: schema for name, schema in rows if schema != self.schema}

    @cached_property
    def _inspector(self) -> Inspector:
        return inspect(self.connection)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self._inspector.get_table_names(schema=self.schema))

    def _folded(self, name: str) -> str:
        return name if self._is_postgresql else name.lower()

    def _find_in_mysql(self, name: str) -> TableFacts | None:
        def ask(query: Any) -> list[Any]:
            return [*self.connection.execute(query, {"name": name})]

        engine = ask(_MYSQL_ENGINE)
        if not engine:
            return None
        columns = {
            column: ColumnFacts(
                _mysql_type(_SHOWN_WIDTH.sub("", type_.upper()), charset, collation),
                nullable == "YES",
                default is not None or bool(extra),
            )
            for column, type_, charset, collation, nullable, default, extra in ask(_MYSQL_COLUMNS)
        }
        indexes: dict[str, tuple[bool, list[str]]] = {}
        for index, non_unique, column, prefix in ask(_MYSQL_INDEXES):
            part = str(column) if prefix is None else f"{column}({prefix})"
            indexes.setdefault(index, (not non_unique, []))[1].append(part)
        _, key = indexes.pop("PRIMARY", (True, []))
        return TableFacts(columns, key, indexes, str(engine[0][0]))


def home_of(connection: Connection, table: str) -> str | None:
    """PostgreSQL's schema in which a connection finds a table, as checkers do.

    None: where the connection makes tables, or another database.
    """
    return Catalogue(connection).elsewhere([table]).get(table)


def refuse_elsewhere(connection: Connection, names: Sequence[str]) -> None:
    """Raise SchemaError if the session finds one of these tables in another schema than it makes tables in.

    Tables that it made would hide those, and all keys in them.
    """
    catalogue = Catalogue(connection)
    found = catalogue.elsewhere(names)
    if found:
        first = next(name for name in names if name in found)
        raise SchemaError(
            f"this session makes tables in the schema {catalogue.schema!r}, and finds {first} in {found[first]!r}, "
            "which a new one would hide. Nothing was changed. Let the session look into one schema only, with "
            f"{option_for(found[first])} in the URL, or with {option_for(str(catalogue.schema))} if that is to "
            "have tables of its own"
        )


def wanted(table: Table, dialect: Dialect) -> TableFacts:
    """A table as its definition wants it."""
    return TableFacts(
        {
            column.name: ColumnFacts(
                _sql(column.type, dialect), bool(column.nullable), column.autoincrement is True
            )
            for column in table.columns
        },
        [column.name for column in table.primary_key.columns],
        {
            str(index.name): (bool(index.unique), [column.name for column in index.columns])
            for index in table.indexes
        },
        "InnoDB" if dialect.name in _MYSQL else "",
    )


def _sql(type_: Any, dialect: Dialect) -> str:
    written = str(type_.compile(dialect=dialect))
    # The tables name no collation for PostgreSQL, so any does.
    return written if dialect.name in _MYSQL else written.partition(" COLLATE ")[0]


def _mysql_type(type_: str, charset: str | None, collation: str | None) -> str:
    type_ = re.sub(r"^INT\b", "INTEGER", type_)
    return type_ if charset is None else f"{type_} CHARACTER SET {charset} COLLATE {collation}"
