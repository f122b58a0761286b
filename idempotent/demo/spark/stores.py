"""The ledger and the table of the Spark demo: under names of its own, created empty, removed at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Column, Integer, MetaData, String, Table, delete, insert, select, text

from idempotent.adapters.spark import StoreConfig
from idempotent.checkers.urls import StoreKind, scheme_of
from idempotent.migrations import downgrade, upgrade
from idempotent.testing.stage import redis_keys
from idempotent.testing.stage.databases import engine_at

_KEYS: Final = "demo_spark_tbl"
_FLIGHTS: Final = "demo_spark_flights"
_ROWS_PER_INSERT: Final = 1000
# No constraint keeps a flight from being stored twice: the ledger has to.
_TABLE: Final = Table(
    _FLIGHTS,
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("run_id", String(32), nullable=False, index=True),
    Column("flight", String(64), nullable=False),
    Column("distance", Integer, nullable=False),
    Column("arr_delay", Integer),
    Column("carrier_name", String(64), nullable=False),
    Column("punctuality", String(16), nullable=False),
)
COLUMNS: Final = ("flight", "distance", "arr_delay", "carrier_name", "punctuality")


@dataclass(frozen=True, slots=True)
class SparkStores:
    """The stores of one run of the demo.

    Attributes:
        ledger_url: of the runs and their claims.
        database_url: of the table of flights: the ledger's database, or a file if that is Redis.
    """

    ledger_url: str
    database_url: str

    @classmethod
    def at(cls, url: str | None, folder: Path) -> SparkStores:
        """The stores at a URL, or in files. Raises ConfigurationError: the URL names no supported store."""
        own_file = f"sqlite:///{folder / 'flights.sqlite3'}?timeout=60"
        stores = cls(url or own_file, own_file if url is None or _is_redis(url) else url)
        _ = stores.ledger
        return stores

    @property
    def ledger(self) -> StoreConfig:
        """The store for `IdempotentRun.begin`."""
        return StoreConfig(self.ledger_url, table=_KEYS, prefix=redis_keys.PREFIX)

    def prepare(self) -> None:
        """Create everything, empty.

        Raises:
            StoreError: a store cannot be used; the message says which one and what to do.
            MissingExtraError: the driver of a store is not installed.
        """
        self._on_ledger(make=True)
        with engine_at(self.database_url, _FLIGHTS) as engine:
            if engine.dialect.name == "sqlite":
                with engine.connect() as connection:
                    connection.execute(text("PRAGMA journal_mode=WAL"))
            _TABLE.drop(engine, checkfirst=True)
            _TABLE.create(engine)

    def clean(self) -> None:
        """Remove what `prepare` made.

        Raises:
            StoreError: a store does not answer.
        """
        self._on_ledger(make=False)
        with engine_at(self.database_url, _FLIGHTS) as engine:
            _TABLE.drop(engine, checkfirst=True)

    def replace(self, run_id: str, rows: Iterable[dict[str, Any]]) -> None:
        """Replace all rows of a run by these, in one transaction; repeated, it changes no row."""
        values = [{"run_id": run_id, **{name: row[name] for name in COLUMNS}} for row in rows]
        with engine_at(self.database_url, _FLIGHTS) as engine, engine.begin() as connection:
            connection.execute(delete(_TABLE).where(_TABLE.c.run_id == run_id))
            for start in range(0, len(values), _ROWS_PER_INSERT):
                connection.execute(insert(_TABLE), values[start : start + _ROWS_PER_INSERT])

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Every row, with its columns in the order of COLUMNS."""
        columns = [_TABLE.c[name] for name in COLUMNS]
        with engine_at(self.database_url, _FLIGHTS) as engine, engine.connect() as connection:
            for row in connection.execution_options(yield_per=10_000).execute(select(*columns)):
                yield tuple(row)

    def _on_ledger(self, *, make: bool) -> None:
        if _is_redis(self.ledger_url):
            redis_keys.delete_all(self.ledger_url)
            return
        with engine_at(self.ledger_url, _KEYS) as engine:
            downgrade(engine, table=_KEYS)
            if make:
                upgrade(engine, table=_KEYS)


def _is_redis(url: str) -> bool:
    return scheme_of(url).kind is StoreKind.REDIS
