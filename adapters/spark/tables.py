"""Rows of a run in a table of a database: Spark's tasks insert each, however often, unless its key is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from idempotent.adapters.spark.keys import quoted
from idempotent.errors import ConfigurationError
from idempotent.stores.sql.connections import Connections
from idempotent.stores.sql.cursor import DriverConnection, execute, query
from idempotent.stores.sql.dialects import SqlDialect
from idempotent.stores.sql.engines import engine_from

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Rows in one statement: an SQLite before 3.32 takes 999 values.
_KEYS: Final = 200
_IN_UTC: Final = "timestampadd(MICROSECOND, unix_micros({0}), TIMESTAMP_NTZ'1970-01-01 00:00:00') AS {0}"


@dataclass(frozen=True, slots=True)
class Inserts:
    """For `foreachPartition`: inserts rows whose keys the table does not have, `chunk` in a transaction. Picklable.

    An empty key stands for the primary key, until `checked`. An answer of the database takes `answer_s` at most.
    """

    url: str = field(repr=False)
    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    chunk: int
    answer_s: float | None = None
    filled: frozenset[str] = frozenset()

    def checked(self) -> Inserts:
        """The same with its key, once the table is known to fit: a task would say it later, and four times."""
        with _connections(self.url, self.table) as connections:
            _ = connections.dialect  # asks the server, whose errors are explained
            about: Any = sa.inspect(connections.engine)
            schema, _, name = self.table.rpartition(".")
            place = {"table_name": name, "schema": schema or None}
            if not about.has_table(**place):
                raise ConfigurationError(f"no table {self.table} for this user: create it, or grant its use")
            found = about.get_columns(**place)
            nullable = {column["name"]: column["nullable"] for column in found}
            fills = connections.dialect.name == "postgresql"
            filled = frozenset(each["name"] for each in found if fills and isinstance(each["type"], sa.CHAR))
            primary = about.get_pk_constraint(**place)["constrained_columns"]
            # An index over some of the rows has an option such as postgresql_where.
            unique = [
                set(each["column_names"])
                for each in (*about.get_unique_constraints(**place), *about.get_indexes(**place))
                if each.get("unique", True) and "where" not in str(each.get("dialect_options", {}).keys())
            ]
        key = self.key or tuple(primary)
        if missing := [column for column in self.columns if column not in nullable]:
            raise ConfigurationError(f"{self.table} has no column {missing[0]!r}, but {', '.join(nullable)}")
        fits = key and set(key) in (set(primary), *unique) and set(key) <= set(self.columns)
        if not fits or any(nullable[column] for column in set(key) - set(primary)):
            raise ConfigurationError(
                f"{', '.join(key) or 'nothing'} is no unique key of {self.table} that is NOT NULL and that the rows "
                "have, and rows that are inserted again would be there twice: name another by key="
            )
        return replace(self, key=key, filled=filled)

    def __call__(self, rows: Iterable[Sequence[Any]]) -> None:
        """Insert the rows of one partition, on an executor."""
        source = iter(rows)
        with _connections(self.url, self.table) as connections:
            while part := [tuple(row) for row in islice(source, self.chunk)]:
                connections.run_atomically(self._insert, connections.dialect, part, answer_s=self.answer_s)

    def _insert(self, driver: DriverConnection, dialect: SqlDialect, rows: list[tuple[Any, ...]]) -> None:
        columns, key = (self._names(dialect, names) for names in (self.columns, self.key))
        statement = (
            f"INSERT INTO {self._place(dialect)} ({columns}) VALUES ({dialect.markers(_marks(self.columns))}) "
            f"{dialect.if_stored(column=self._names(dialect, self.key[:1]) if dialect.name == 'mysql' else key)}"
        )
        if dialect.name == "postgresql":
            execute(driver, "SET LOCAL TimeZone TO 'UTC'")  # as the sessions of MySQL are
        with closing(driver.new_cursor()) as cursor:
            cursor.executemany(statement, rows)
        self._demand_keys(driver, dialect, rows)

    def _demand_keys(
        self, driver: DriverConnection, dialect: SqlDialect, rows: Iterable[tuple[Any, ...]]
    ) -> None:
        """Check that the table has each key of the rows, exactly as it is in them.

        Raises:
            ConfigurationError: the database takes two keys of the run for one, or refused a row for another reason.
        """
        places = [self.columns.index(name) for name in self.key]
        keys = [tuple(row[place] for place in places) for row in rows]
        names, found = self._names(dialect, self.key), set()
        for start in range(0, len(keys), _KEYS):
            part = keys[start : start + _KEYS]
            wanted = dialect.markers(", ".join([f"({_marks(self.key)})"] * len(part)))
            values = f"VALUES {wanted}" if dialect.name == "sqlite" else wanted
            statement = f"SELECT {names} FROM {self._place(dialect)} WHERE ({names}) IN ({values})"
            params = [value for key in part for value in key]
            if dialect.name == "postgresql":  # takes a text for any type, and a number for a number alone
                params = [_text(value) for value in params]
            for row in query(driver, statement, params):
                # PostgreSQL fills texts of type CHAR with spaces.
                pairs = zip(self.key, map(_text, row), strict=True)
                found.add(tuple(text.rstrip(" ") if name in self.filled else text for name, text in pairs))
        lost = sum(tuple(map(_text, key)) not in found for key in keys)
        if lost:
            raise ConfigurationError(
                f"{lost} of {len(keys)} rows would be lost: {self.table} does not have their {', '.join(self.key)} as "
                "it is in them, and takes no further row. Its type or collation changes a key or takes two for one, or "
                "another unique key or a trigger refuses the row. Use the type of the rows, or cast them where you "
                "publish, and for texts use a collation that tells capitals and spaces apart"
            )

    def _place(self, dialect: SqlDialect) -> str:
        return ".".join(self._names(dialect, [part]) for part in self.table.split("."))

    @staticmethod
    def _names(dialect: SqlDialect, names: Iterable[str]) -> str:
        """These names in a statement, in which PyMySQL takes a `%` for a marker's."""
        quoted = ", ".join(map(dialect.quoted, names))
        return quoted.replace("%", "%%") if dialect.marker == "%s" else quoted


def _marks(names: Sequence[str]) -> str:
    return ", ".join("?" * len(names))


def _text(value: Any) -> Any:
    """A key's value as it is compared with what a driver returns for it, which may be of another type; bytes stay."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (int, float, Decimal)):
        return f"{Decimal(str(value)).normalize():f}"
    if isinstance(value, datetime):
        value = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return str(value.date() if value.time() == time() else value)
    return str(value)


def in_utc(df: DataFrame) -> DataFrame:
    """The frame with its instants as date and time in UTC, not in the zone of the machine where a worker runs."""
    columns = [(quoted(name), kind == "timestamp") for name, kind in df.dtypes]
    return df.selectExpr(*(_IN_UTC.format(name) if instant else name for name, instant in columns))


@contextmanager
def _connections(url: str, table: str) -> Iterator[Connections]:
    connections = Connections(engine_from(url), table)
    try:
        yield connections
    finally:
        connections.close()
        connections.engine.dispose()
