"""The ledgers that tests run over."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa

from idempotent.adapters.spark.ledger import Ledger, MemoryLedger, StoreConfig, open_ledger
from idempotent.migrations import downgrade, upgrade

SHARED = ("sqlite", "mysql", "postgres", "redis")
ALL = ("memory", *SHARED)
RETENTION_S = 3600.0


@dataclass
class Place:
    """A store for one test, and the ledgers over it."""

    kind: str
    url: str
    name: str = field(default_factory=lambda: f"led_{secrets.token_hex(6)}")
    opened: ExitStack = field(default_factory=ExitStack)
    memory: MemoryLedger | None = None

    def config(self, **options: Any) -> StoreConfig:
        options = {"retention_s": RETENTION_S} | options
        return StoreConfig(self.url, table=self.name, prefix=f"{self.name}:", **options)

    def ledger(self, **options: Any) -> Ledger:
        """A ledger of its own over the same store, as another process has one."""
        if self.kind == "memory":
            ledger: Any = MemoryLedger(**({"retention_s": RETENTION_S} | options))
            self.memory = self.memory or ledger
            ledger._store = self.memory._store
        else:
            ledger = open_ledger(self.config(**options))
        self.opened.callback(ledger.close)
        return ledger


def open_place(kind: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    """An empty store of this kind, removed afterwards."""
    match kind:
        case "memory":
            url = "memory://"
        case "sqlite":
            url = f"sqlite:///{request.getfixturevalue('tmp_path')}/ledger.db?timeout=30"
        case _:
            url = request.getfixturevalue(f"{kind}_url")
    place = Place(kind, url)
    if kind in ("sqlite", "mysql", "postgres"):
        if kind == "sqlite":
            engine = sa.create_engine(url)
            with engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            engine.dispose()
        upgrade(url, table=place.name)
    try:
        yield place
    finally:
        place.opened.close()
        if kind in ("mysql", "postgres"):
            downgrade(url, table=place.name)
