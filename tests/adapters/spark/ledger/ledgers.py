"""The ledgers that tests run over."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from idempotent.adapters.spark.ledger import Ledger, MemoryLedger, StoreConfig, open_ledger
from idempotent.schema import DEFAULT_TABLE
from tests.adapters.spark.support import migrated

SHARED = ("sqlite", "mysql", "postgres", "redis")
ALL = ("memory", *SHARED)
RETENTION_S = 3600.0


class OverOneMemory(MemoryLedger):
    """Over the memory of another ledger, if one is given."""

    def __init__(self, first: MemoryLedger | None, **options: Any) -> None:
        super().__init__(**options)
        if first is not None:
            self._store = first._store


@dataclass
class Place:
    """A store for one test, and the ledgers over it."""

    kind: str
    url: str
    name: str
    opened: ExitStack = field(default_factory=ExitStack)
    memory: MemoryLedger | None = None

    def config(self, **options: Any) -> StoreConfig:
        options = {"retention_s": RETENTION_S} | options
        return StoreConfig(self.url, table=self.name, prefix=f"{self.name}:", **options)

    def ledger(self, **options: Any) -> Ledger:
        """A ledger of its own over the same store, as another process has one."""
        if self.kind == "memory":
            ledger: Ledger = OverOneMemory(self.memory, **({"retention_s": RETENTION_S} | options))
            self.memory = self.memory or ledger
        else:
            ledger = open_ledger(self.config(**options))
        self.opened.callback(ledger.close)
        return ledger


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
