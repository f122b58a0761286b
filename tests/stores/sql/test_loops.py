"""The connections of an AsyncEngine belong to one event loop each, and end with it."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import suppress
from functools import partial

import pytest
import sqlalchemy as sa
from sqlalchemy.util import greenlet_spawn

from idempotent.claims import ClaimRequest, Verdict
from idempotent.keys import KeySpace
from idempotent.stores.sql.cursor import query
from tests.processing.test_interrupted import SignalError, interrupt_at
from tests.support.stores import ASYNC, open_store

SPACE = KeySpace("orders", "loops")


@pytest.fixture(params=ASYNC)
def store(request):
    yield from open_store(request.param, request, reuse=True)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine on a new event loop of either kind, and closes it."""
    if request.param == "asyncio":
        return asyncio.run
    return pytest.importorskip("uvloop").run


def opened(store):
    """How many connections to the database of this test the server has, besides the one that asks."""
    ask = {
        "mysql": "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info IS NULL",
        "postgres": "SELECT COUNT(*) - 1 FROM pg_stat_activity WHERE datname = current_database()",
    }
    with store.admin_engine.connect() as connection:
        return connection.execute(sa.text(ask[store.kind])).scalar_one()


def settles(probe, value):
    """Whether a number becomes this value: a server notices the end of a connection a moment later."""
    pause = threading.Event()
    return any(probe() == value or pause.wait(0.05) for _ in range(200) if not pause.is_set())


async def book(checker, number):
    decision = await checker.awaiting.claim(ClaimRequest(SPACE.key(str(number))))
    if decision.claim is not None:
        await checker.awaiting.complete(decision.claim)
    return decision.verdict


def test_one_checker_serves_one_event_loop_after_the_other(store, run):
    checker = store.transactional(store.async_engine())
    before = opened(store)
    for number in range(3):
        assert run(book(checker, number)) is Verdict.ACQUIRED
        assert len(checker._transactions._connections._idle) == 0
        assert len(checker.store.connections._own._idle) == 0
        assert settles(lambda: opened(store), before)
    assert run(book(checker, 0)) is Verdict.DUPLICATE


@pytest.mark.parametrize("then", ["close", "another loop"])
def test_the_connections_of_a_loop_that_was_only_closed_are_closed_too(store, then):
    checker = store.transactional(store.async_engine())
    before = opened(store)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(book(checker, 1))
    loop.close()
    assert len(checker._transactions._connections._idle) == 1
    if then == "close":
        checker.close()
    else:
        assert asyncio.run(book(checker, 2)) is Verdict.ACQUIRED
        assert len(checker._transactions._connections._idle._by_loop) <= 1
    assert settles(lambda: opened(store), before)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of a connection that is freed
def test_an_exception_at_any_place_of_a_take_keeps_no_place(store):
    """The handler of a signal may raise anywhere; a place that is lost is lost for the life of the process."""
    checker = store.transactional(store.async_engine(pool_size=1, max_overflow=0, pool_timeout=5))
    connections = checker._transactions._connections
    taken = []

    def take():
        taken.append(connections.take())

    async def take_again_and_again():
        nth = 0
        while True:
            interrupted = await greenlet_spawn(
                partial(interrupt_at, nth, take, SignalError, within=("idempotent.", "sqlalchemy."))
            )
            if not taken:
                await greenlet_spawn(take)  # not within the pool's time, if the place is lost
            await greenlet_spawn(connections.put, taken.pop())
            if not interrupted:
                return nth
            nth += 1

    assert asyncio.run(take_again_and_again()) > 10
    gc.collect()  # so that the warnings about those connections belong to this test


def test_a_take_that_is_cancelled_in_any_turn_of_its_loop_keeps_no_place(store, run):
    checker = store.transactional(store.async_engine(pool_size=1, max_overflow=0, pool_timeout=5))
    connections = checker._transactions._connections

    async def cancel_in_each_turn():
        turns, is_over = 0, False
        while not is_over:
            holder = await greenlet_spawn(connections.take)
            task = asyncio.create_task(greenlet_spawn(connections.take))
            for turn in range(turns):
                if turn == 3:
                    await greenlet_spawn(connections.put, holder)  # while the other one waits for it
                await asyncio.sleep(0)
            if turns <= 3:
                await greenlet_spawn(connections.put, holder)
            is_over = task.done()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await greenlet_spawn(connections.put, await task)
            await greenlet_spawn(connections.put, await greenlet_spawn(connections.take))
            turns += 1
        return turns

    assert run(cancel_in_each_turn()) > 3


def test_loops_of_two_threads_use_connections_of_their_own(store):
    checker = store.transactional(store.async_engine())
    met = threading.Barrier(2)
    answers = []

    async def several(first):
        await asyncio.to_thread(met.wait, 30)
        for number in range(20):
            answers.append(await book(checker, first + number))
            mine = checker._transactions._connections._idle._by_loop[asyncio.get_running_loop()][0]
            assert all(each.driver.raw.loop is asyncio.get_running_loop() for each in mine._connections)

    threads = [threading.Thread(target=lambda first=first: asyncio.run(several(first))) for first in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [Verdict.ACQUIRED] * 40


def test_a_plain_thread_and_a_loop_use_the_same_checker(store, run):
    checker = store.transactional(store.async_engine())
    checker.ping()
    claim = checker.protocol.claim(ClaimRequest(SPACE.key("1"))).claim
    assert run(book(checker, 2)) is Verdict.ACQUIRED
    assert checker.protocol.complete(claim)
    assert run(book(checker, 1)) is Verdict.DUPLICATE
    assert checker.garbage_collect() == 0
    assert {record.text.rpartition(":")[2] for record in checker.admin().list(_all())} == {"1", "2"}
    assert not [finding for finding in checker.findings() if finding.level.value == "error"]


def _all():
    from idempotent.admin import KeyFilter

    return KeyFilter()


def test_closing_a_checker_ends_its_thread_and_its_connections(store):
    before = opened(store)
    checker = store.transactional(store.async_engine())
    checker.ping()
    checker.protocol.release(checker.protocol.claim(ClaimRequest(SPACE.key("1"))).claim)
    assert [thread for thread in threading.enumerate() if thread.name == "idempotent-sql"]
    checker.close()
    checker.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "idempotent-sql"]
    assert settles(lambda: opened(store), before)


def test_an_engine_whose_pool_is_used_up_does_not_hold_up_a_message(store, run):
    engine = store.async_engine(pool_size=1, max_overflow=0, pool_timeout=0.2)
    checker = store.transactional(engine)

    async def main():
        async with engine.connect() as connection:
            await connection.execute(sa.text("SELECT 1"))
            assert await book(checker, 1) is Verdict.ACQUIRED
            await connection.rollback()
        await engine.dispose()

    run(main())


def test_disposing_of_the_engine_closes_the_idle_connections(store, run):
    engine = store.async_engine()
    checker = store.transactional(engine)

    async def main():
        assert await book(checker, 1) is Verdict.ACQUIRED
        assert len(checker._transactions._connections._idle) == 1
        await engine.dispose()
        assert len(checker._transactions._connections._idle) == 0
        assert await book(checker, 2) is Verdict.ACQUIRED

    run(main())


def test_a_burst_leaves_as_many_connections_as_the_engines_pool_keeps(store, run):
    checker = store.transactional(store.async_engine(pool_size=3))

    async def main():
        answers = await asyncio.gather(*(book(checker, number) for number in range(20)))
        assert answers == [Verdict.ACQUIRED] * 20
        assert len(checker._transactions._connections._idle) == 3

    run(main())


def test_the_first_connections_of_two_loops_wait_for_the_servers_version(store):
    """Of a dialect that is half set up, a checker would not know what the server can do."""
    for _ in range(5):
        checker = store.transactional(store.async_engine())
        start = threading.Barrier(2)
        known = []

        def ask(checker=checker, start=start, known=known):
            start.wait(30)
            asyncio.run(greenlet_spawn(checker.store.connections.run, query, "SELECT 1"))
            known.append(checker.store.connections.dialect.conflict)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(known) == 2
        assert len(set(known)) == 1
        checker.close()
