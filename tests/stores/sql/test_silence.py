"""A connection that stays open and forwards nothing any more: a proxy, or a process of the server, that hangs."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from idempotent import Registry
from idempotent.adapters import MemoryBroker
from idempotent.checkers import SqlChecker, TransactionalSqlChecker
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.pauses import pauses_of
from idempotent.claims import Verdict
from idempotent.errors import StoreUnavailableError
from idempotent.stores.sql.sockets import LONGEST_S
from idempotent.testing.proxy import Loss, Proxy
from tests.checkers.batching.rounds import request as claim_of
from tests.support.stores import ASYNC, ASYNC_URLS, Store, open_store
from tests.worker.running import Running, consumer_of, emptying, publish

pytestmark = pytest.mark.slow


@pytest.fixture(params=ASYNC)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    yield from open_store(request.param, request, reuse=True)


@pytest.fixture
def proxy(store: Store) -> Iterator[Proxy]:
    url = sa.make_url(store.url)
    assert url.host is not None
    assert url.port is not None
    proxy = Proxy(url.host, url.port)
    yield proxy
    proxy.close()


@pytest.fixture
def checker(store: Store, proxy: Proxy) -> Iterator[SqlChecker]:
    """Behind the proxy; an answer may take three seconds, a third of the lease."""
    engine = sa.create_engine(sa.make_url(store.url).set(host="127.0.0.1", port=proxy.port))
    checker = SqlChecker(engine, table=store.table, lease_s=9.0)
    yield checker
    checker.close()
    engine.dispose()


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "tasks"])
@pytest.mark.parametrize("word", [b"INSERT", b"UPDATE"], ids=["claim", "completion"])
def test_it_does_not_stop_a_worker(checker: SqlChecker, proxy: Proxy, is_async: bool, word: bytes) -> None:
    registry, broker = Registry(), MemoryBroker()
    effects: Counter[str] = Counter()
    consumer_of(registry, lambda message: effects.update([message.id]), is_async=is_async, checker=checker)
    names = [str(number) for number in range(300)]
    publish(broker, *names)
    silent = proxy.lose(word, Loss.SILENCE, passing=5)
    Running(emptying(registry, broker, concurrency=32)).join()
    assert silent.is_set()
    assert effects == Counter(names)


@pytest.fixture
def checkers(
    checker: SqlChecker, store: Store, proxy: Proxy
) -> Iterator[dict[str, AbstractIdempotentChecker]]:
    url = sa.make_url(store.url).set(host="127.0.0.1", port=proxy.port)
    engine = create_async_engine(ASYNC_URLS[store.kind](url))
    tasks = TransactionalSqlChecker(engine, table=store.table)
    yield {"threads": checker, "asyncio": tasks}
    tasks.close()
    engine.sync_engine.dispose()


@pytest.mark.parametrize("driver", ["threads", "asyncio"])
def test_a_worker_does_not_wait_for_what_it_asks(
    checkers: dict[str, AbstractIdempotentChecker], proxy: Proxy, driver: str
) -> None:
    """Whether the store takes keys, and which consumers are paused: it asks again, and is told."""
    checker = checkers[driver]
    questions: list[Callable[[], object]] = [checker.ping, lambda: pauses_of(checker, ["orders:default"])]
    for question in questions:
        question()
        proxy.stall()
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            question()
        assert time.monotonic() - began < 4 * LONGEST_S
        proxy.go_on()
        question()


def test_a_server_that_answers_no_new_connection_is_unavailable(checker: SqlChecker, proxy: Proxy) -> None:
    assert checker.lone.claim(claim_of("before")).claim
    checker.store.connections.close()
    proxy.stall()
    with pytest.raises(StoreUnavailableError):
        checker.lone.claim(claim_of("m"))
    proxy.go_on()
    assert checker.lone.claim(claim_of("m")).claim


def test_a_locked_table_leaves_no_statement_behind(checker: SqlChecker, store: Store) -> None:
    """They would use up the server's connections, one for each claim that is tried again."""
    before = checker.lone.claim(claim_of("before")).claim
    assert before
    assert checker.lone.complete(before)
    lock, waiting = (
        ("LOCK TABLE {}", "SELECT query FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        if store.kind == "postgres"
        else (
            "LOCK TABLES {} WRITE",
            "SELECT info FROM information_schema.processlist WHERE state LIKE '%lock%'",
        )
    )
    locking = store.admin_engine.connect()
    try:
        locking.execute(sa.text(lock.format(store.table)))
        with contextlib.suppress(StoreUnavailableError):
            assert checker.lone.claim(claim_of("m")).verdict is Verdict.IN_PROGRESS
        with store.admin_engine.connect() as watching:
            left = watching.scalars(sa.text(waiting)).all()
        assert not [query for query in left if store.table in query and "processlist" not in query]
    finally:
        locking.invalidate()  # frees the table
        locking.close()
    assert checker.lone.claim(claim_of("m")).claim


def test_a_command_may_wait_longer(checker: SqlChecker, store: Store) -> None:
    """What a person asks for reads the whole table."""
    sleep = "pg_sleep(5)" if store.kind == "postgres" else "SLEEP(5)"
    with contextlib.closing(checker.store):
        assert checker.store.connections.run(lambda driver: driver.cursor.execute(f"SELECT {sleep}") or 7)
