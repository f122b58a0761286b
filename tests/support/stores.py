"""The stores that tests run over: each test gets tables or a prefix of its own."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from idempotent.checkers import MemoryChecker, SqlChecker, TransactionalSqlChecker
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.keys import Key
from tests.support.ageing import age_keys, age_tables
from tests.support.privileges import user_of_keys
from tests.support.tables import TablePool, Tables, effects_table, new_name

SQL = ("sqlite", "mysql", "postgres")
SHARED = (*SQL, "redis")
ALL = ("memory", *SHARED)
ASYNC = ("mysql", "postgres")
# asyncmy has no `ssl_disabled`: it does not encrypt unless it is told to.
ASYNC_URLS = {
    "mysql": lambda url: url.set(drivername="mysql+asyncmy").difference_update_query(["ssl_disabled"]),
    "postgres": lambda url: url.set(drivername="postgresql+psycopg"),
}


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
    table: str = field(default_factory=new_name)
    opened: ExitStack = field(default_factory=ExitStack)
    consumer_url: str = ""
    """What checkers connect with, if not with `url`: a user who may do no more than a consumer needs."""
    clock: Clock = field(default_factory=Clock)
    own_engine: sa.Engine | None = None
    """An engine on `url` that other tests use as well."""

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

    def note_death(self, *keys: Key) -> None:
        """Note a start of each key that has no end, as a process that dies leaves it without leases."""
        self.transactional()._runs.note(keys, ())

    def age(self, seconds: float) -> None:
        """Make all keys and failures in the store this much older."""
        if self.kind == "memory":
            self.clock.ahead_s += seconds
        elif self.kind == "redis":
            age_keys(self.url, f"{self.table}:", seconds)
        else:
            age_tables(self.admin_engine, self.table, seconds)

    @cached_property
    def admin_engine(self) -> sa.Engine:
        """For the test's own statements."""
        return self.own_engine or self.engine()

    def engine(self, **options: Any) -> sa.Engine:
        return self._engine(self.url, **options)

    def consumer_engine(self, **options: Any) -> sa.Engine:
        return self._engine(self.consumer_url or self.url, **options)

    def _engine(self, url: str, **options: Any) -> sa.Engine:
        engine = sa.create_engine(url, **options)
        self.opened.callback(engine.dispose)
        return engine

    def async_engine(self, **options: Any) -> AsyncEngine:
        """An AsyncEngine, whose own pool a test leaves empty."""
        url = self.consumer_url or self.url
        engine = create_async_engine(ASYNC_URLS[self.kind](sa.make_url(url)), **options)
        self.opened.callback(engine.sync_engine.dispose)
        return engine

    @property
    def effects(self) -> sa.Table:
        """A business table that only the checker protects."""
        return effects_table(sa.MetaData(), self.table)

    def booked(self) -> dict[str, int]:
        """How often each effect happened."""
        effects = self.effects
        with self.admin_engine.connect() as connection:
            rows = connection.execute(sa.select(effects.c.id, sa.func.count()).group_by(effects.c.id)).all()
        return {str(row[0]): int(row[1]) for row in rows}


def open_store(
    kind: str, request: pytest.FixtureRequest, *, least: bool = False, reuse: bool = False
) -> Iterator[Store]:
    """An empty store.

    Args:
        kind: one of `ALL`.
        request: of the test.
        least: checkers have the least privileges.
        reuse: take tables that another test has used. Not for a test that changes their definition.
    """
    with _opened(kind, request, least=least, reuse=reuse) as store, store.opened:
        yield store


@contextmanager
def _opened(kind: str, request: pytest.FixtureRequest, *, least: bool, reuse: bool) -> Iterator[Store]:
    if kind == "memory":
        yield Store(kind, "memory://")
    elif kind == "redis":
        store = Store(kind, request.getfixturevalue("redis_url"))
        name = f"c_{secrets.token_hex(6)}"
        with user_of_keys(store.url, name, f"{store.table}:") if least else nullcontext("") as consumer_url:
            yield replace(store, consumer_url=consumer_url)
    elif kind == "sqlite":
        yield _sqlite(request.getfixturevalue("tmp_path") / "store.db")
    else:
        pool: TablePool = request.getfixturevalue(f"{kind}_tables")
        with pool.reused() if reuse else pool.fresh() as tables:
            store = Store(
                kind,
                pool.url,
                tables.name,
                consumer_url=tables.consumer_url() if least else "",
                own_engine=pool.engine,
            )
            try:
                yield store
            finally:
                store.opened.close()


def _sqlite(path: Path) -> Store:
    store = Store("sqlite", f"sqlite:///{path}")
    with store.admin_engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    Tables(store.admin_engine, store.table).create()
    return store
