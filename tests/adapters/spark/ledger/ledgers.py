"""The ledgers that tests run over."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from idempotent.adapters.spark.ledger import RunLedger, StoreConfig
from idempotent.adapters.spark.ledger.store import RunStore
from idempotent.adapters.spark.ledger.urls import open_ledger
from idempotent.schema import DEFAULT_TABLE
from tests.adapters.spark.ledger.memory import Memory, MemoryRunStore
from tests.adapters.spark.support import migrated

SHARED = ("sqlite", "mysql", "postgres", "redis")
ALL = ("memory", *SHARED)
RETENTION_S = 3600.0


@dataclass
class Place:
    """A store for one test, and the ledgers over it."""

    kind: str
    url: str
    name: str
    opened: ExitStack = field(default_factory=ExitStack)
    memory: Memory = field(default_factory=Memory)

    def config(self, **options: Any) -> StoreConfig:
        options = {"retention_s": RETENTION_S} | options
        return StoreConfig(self.url, table=self.name, prefix=f"{self.name}:", **options)

    def ledger(self, **options: Any) -> RunLedger:
        """A ledger of its own over the same store, as another process has one."""
        return RunLedger(self.store(**options))

    def store(self, **options: Any) -> RunStore:
        """A store object of its own, which is closed with the place."""
        if self.kind == "memory":
            store: RunStore = MemoryRunStore(self.memory, **({"retention_s": RETENTION_S} | options))
        else:
            store = open_ledger(self.config(**options)).store
        self.opened.callback(store.close)
        return store


def open_place(kind: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    """An empty store of this kind."""
    match kind:
        case "memory":
            place = Place(kind, "memory://", "memory")
        case "sqlite":
            url = migrated.sqlite_url(request.getfixturevalue("tmp_path") / "ledger.db")
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
            place = Place(kind, f"{url}?timeout=30", DEFAULT_TABLE)
        case "redis":
            place = Place(kind, request.getfixturevalue("redis_url"), f"t{secrets.token_hex(6)}")
        case _:
            url = request.getfixturevalue(f"{kind}_url")
            place = Place(kind, url, migrated.empty_table(url))
    with place.opened:
        yield place
