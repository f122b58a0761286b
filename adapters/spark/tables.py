"""Rows of a run in a table of a database: Spark's tasks insert each, however often, unless its key is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from idempotent.adapters.spark.keys import quoted
from idempotent.errors import ConfigurationError
from idempotent.stores.sql.connections import Connections
from idempotent.stores.sql.cursor import DriverConnection, execute
from idempotent.stores.sql.dialects import SqlDialect
from idempotent.stores.sql.engines import engine_from

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_IN_UTC: Final = "timestampadd(MICROSECOND, unix_micros({0}), TIMESTAMP_NTZ'1970-01-01 00:00:00') AS {0}"


@dataclass(frozen=True, slots=True)
class Inserts:
    """For `foreachPartition`: inserts rows whose keys the table does not have, `chunk` in a transaction. Picklable.

    An empty key stands for the primary key, until `checked`.
    """

    url: str = field(repr=False)
    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    chunk: int

    def checked(self) -> Inserts:
        """The same with its key, once the table is known to fit: a task would say it later, and four times."""
        with _connections(self.url, self.table) as connections:
            _ = connections.dialect  # asks the server, whose errors are explained
            about: Any = sa.inspect(connections.engine)
            schema, _, name = self.table.rpartition(".")
            place = {"table_name": name, "schema": schema or None}
            if not about.has_table(**place):
                raise ConfigurationError(f"no table {self.table} for this user: create it, or grant its use")
            nullable = {column["name"]: column["nullable"] for column in about.get_columns(**place)}
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
        return Inserts(self.url, self.table, self.columns, key, self.chunk)

    def __call__(self, rows: Iterable[Sequence[Any]]) -> None:
        """Insert the rows of one partition, on an executor."""
        source = iter(rows)
        with _connections(self.url, self.table) as connections:
            while part := [tuple(row) for row in islice(source, self.chunk)]:
                connections.run_atomically(self._insert, connections.dialect, part)

    def _insert(self, driver: DriverConnection, dialect: SqlDialect, rows: list[tuple[Any, ...]]) -> None:
        table = ".".join(map(dialect.quoted, self.table.split(".")))
        columns, key = ([dialect.quoted(name) for name in names] for names in (self.columns, self.key))
        # MySQL comes here for every unique key that refuses. If it was another one, or took two texts for one, the row
        # would be lost: a null for the key, which is NOT NULL, fails the statement instead.
        same = " AND ".join(f"CAST({each} AS BINARY) = CAST(VALUES({each}) AS BINARY)" for each in key)
        kept = f"{key[0]} = IF({same}, {key[0]}, NULL)" if dialect.name == "mysql" else ""
        statement = dialect.markers(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
            f" {dialect.if_stored(kept, column=', '.join(key))}"
        )
        if dialect.name == "postgresql":
            execute(driver, "SET LOCAL TimeZone TO 'UTC'")  # as the sessions of MySQL are
        with closing(driver.new_cursor()) as cursor:
            cursor.executemany(statement, rows)


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
