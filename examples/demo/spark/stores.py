"""The ledger and the table of the Spark demo: under names of its own, created empty, removed at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Column, Integer, MetaData, String, Table, insert, select

from examples.demo.stage.databases import RunTable, engine_at
from examples.demo.stage.stores import RunStore
from idempotent.adapters.spark import StoreConfig
from idempotent.checkers.urls import StoreKind, scheme_of

_KEYS: Final = "demo_spark_tbl"
_ROWS_PER_INSERT: Final = 1000
_TABLE: Final = Table(
    "demo_spark_flights",
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
    """The ledger, and the table of flights: in the ledger's database, or in a file if that is Redis."""

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
        return StoreConfig(self.ledger_url, table=_KEYS, prefix=f"{_KEYS}:")

    @property
    def flights(self) -> RunTable:
        """The published flights."""
        return RunTable(self.database_url, _TABLE)

    def prepare(self) -> None:
        """Create everything, empty. Raises StoreError: a store cannot be used."""
        RunStore(self.ledger_url, _KEYS).prepare()
        self.flights.prepare()

    def clean(self) -> None:
        """Remove what `prepare` made. Raises StoreError: a store does not answer."""
        RunStore(self.ledger_url, _KEYS).clean()
        self.flights.clean()

    def insert(self, run_id: str, rows: Iterable[dict[str, Any]]) -> None:
        """Insert the rows of a run, unless it has some: one transaction, so a repetition changes no row."""
        values = [{"run_id": run_id, **{name: row[name] for name in COLUMNS}} for row in rows]
        with engine_at(self.database_url, _TABLE.name) as engine, engine.begin() as connection:
            if connection.execute(select(_TABLE.c.run_id).where(_TABLE.c.run_id == run_id).limit(1)).first():
                return
            for start in range(0, len(values), _ROWS_PER_INSERT):
                connection.execute(insert(_TABLE), values[start : start + _ROWS_PER_INSERT])


def _is_redis(url: str) -> bool:
    return scheme_of(url).kind is StoreKind.REDIS
