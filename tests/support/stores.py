"""The stores that tests run over: each test gets tables or a prefix of its own."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pytest
import sqlalchemy as sa

from idempotent.checkers import MemoryChecker, SqlChecker, TransactionalSqlChecker
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.schema import dedup_tables
from tests.support.ageing import age_keys, age_tables
from tests.support.privileges import user_of_keys, user_of_tables

SQL = ("sqlite", "mysql", "postgres")
SHARED = (*SQL, "redis")
ALL = ("memory", *SHARED)


@dataclass
class Clock:
    """The clock of memory checkers, which a test may put forward."""

    ahead_s: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@dataclass(frozen=True)
class Store:
    """One store, and the checkers over it."""

    kind: str
    url: str
    table: str = field(default_factory=lambda: f"dedup_{secrets.token_hex(6)}")
    opened: ExitStack = field(default_factory=ExitStack)
    consumer_url: str = ""
    """What checkers connect with, if not with `url`: a user who may do no more than a consumer needs."""
    clock: Clock = field(default_factory=Clock)

    def leased(self, **options: Any) -> AbstractIdempotentChecker:
        if self.kind == "memory":
            checker: AbstractIdempotentChecker = MemoryChecker(clock=self.clock, **options)
        elif self.kind == "redis":
            from idempotent.checkers import RedisChecker

            checker = RedisChecker(self.consumer_url or self.url, prefix=f"{self.table}:", **options)
        else:
            checker = SqlChecker(self.consumer_engine(), table=self.table, **options)
        self.opened.callback(checker.close)
        return checker

    def transactional(self, engine: Any = None, **options: Any) -> TransactionalSqlChecker:
        checker = TransactionalSqlChecker(engine or self.consumer_engine(), table=self.table, **options)
        self.opened.callback(checker.close)
        return checker

    def age(self, seconds: float) -> None:
        """Make all keys and failures in the store this much older."""
        if self.kind == "memory":
            self.clock.ahead_s += seconds
        elif self.kind == "redis":
            age_keys(self.url, f"{self.table}:", seconds)
        else:
            age_tables(self._own_engine, self.table, seconds)

    @cached_property
    def _own_engine(self) -> sa.Engine:
        return self.engine()

    def engine(self, **options: Any) -> sa.Engine:
        return self._engine(self.url, **options)

    def consumer_engine(self, **options: Any) -> sa.Engine:
        return self._engine(self.consumer_url or self.url, **options)

    def _engine(self, url: str, **options: Any) -> sa.Engine:
        engine = sa.create_engine(url, **options)
        self.opened.callback(engine.dispose)
        return engine

    @property
    def effects(self) -> sa.Table:
        """A business table without any constraint, so that only the checker protects it."""
        return sa.Table(
            f"{self.table}_effects",
            sa.MetaData(),
            sa.Column("id", sa.String(100), nullable=False),
            mysql_engine="InnoDB",
        )

    def booked(self) -> dict[str, int]:
        """How often each effect happened."""
        effects = self.effects
        with self._own_engine.connect() as connection:
            rows = connection.execute(sa.select(effects.c.id, sa.func.count()).group_by(effects.c.id)).all()
        return {str(row[0]): int(row[1]) for row in rows}


def open_store(kind: str, request: pytest.FixtureRequest, *, least: bool = False) -> Iterator[Store]:
    """A store of this kind, emptied afterwards; `least`: checkers have the least privileges."""
    with _opened(kind, request) as store, store.opened:
        if not least or kind == "memory":
            yield store
            return
        with _consumer_of(store) as url, (restricted := replace(store, consumer_url=url)).opened:
            yield restricted


@contextmanager
def _opened(kind: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    match kind:
        case "memory":
            yield Store(kind, "memory://")
            return
        case "redis":
            yield Store(kind, request.getfixturevalue("redis_url"))
            return
        case "sqlite":
            path = request.getfixturevalue("tmp_path") / "store.db"
            url = f"sqlite:///{path}"
        case "mysql":
            url = request.getfixturevalue("mysql_url")
        case _:
            url = request.getfixturevalue("postgres_url")
    store = Store(kind, url)
    engine = sa.create_engine(url)
    if kind == "sqlite":
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    metadata = sa.MetaData()
    dedup_tables(metadata, store.table)
    metadata.create_all(engine)
    store.effects.create(engine)
    try:
        yield store
    finally:
        store.opened.close()
        store.effects.drop(engine)
        metadata.drop_all(engine)
        engine.dispose()


@contextmanager
def _consumer_of(store: Store) -> Iterator[str]:
    name = f"c_{secrets.token_hex(6)}"
    if store.kind == "redis":
        with user_of_keys(store.url, name, f"{store.table}:") as url:
            yield url
        return
    metadata = sa.MetaData()
    dedup_tables(metadata, store.table)
    engine = sa.create_engine(store.url)
    try:
        with user_of_tables(engine, name, [*metadata.tables, store.effects.name]) as url:
            yield url
    finally:
        engine.dispose()
