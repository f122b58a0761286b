"""Cancellations and lost answers leave neither a lock, nor a dirty connection, nor an effect without its key."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from contextlib import suppress

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from idempotent.claims import ClaimRequest, Verdict
from idempotent.errors import CommitUnknownError, DoomedTransactionError, StoreError
from idempotent.testing.proxy import Loss, Proxy
from tests.checkers.sql.asynchronous.driving import booking, idle_of, key, nothing, process, shielded
from tests.checkers.sql.booking import keys


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine on a new event loop of either kind."""
    if request.param == "asyncio":
        return asyncio.run
    return pytest.importorskip("uvloop").run


def assert_clean(checker):
    """The idle connections are in no transaction, and nothing is under way on them."""
    for idle, _ in checker._units._connections._idle._by_loop.values():
        for detached in idle._connections:
            raw = detached.driver.raw
            assert not raw.busy
            assert not checker.store.connections.dialect.in_transaction(raw)
            assert detached.intact


async def turns_of(task, most=sys.maxsize):
    """How many turns of the event loop a task takes, up to so many."""
    turns = 0
    while turns < most and not task.done():
        turns += 1
        await asyncio.sleep(0)
    return turns


async def cancelled(step, turns):
    """Run a step, and cancel it after so many turns of the event loop. Whether it had not ended by then."""
    task = asyncio.ensure_future(step)
    await turns_of(task, turns)
    was_running = task.cancel()
    with suppress(asyncio.CancelledError):  # a commit goes on to its end
        await task
    return was_running


@pytest.mark.parametrize(
    ("rounds", "seed"), [(60, 1), pytest.param(400, 2, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("shields", [True, False], ids=["shielded", "bare"])
def test_a_message_that_is_cancelled_anywhere_runs_once_in_the_end(store, run, rounds, seed, shields):
    checker = store.transactional(store.async_engine(), lock_timeout_s=20)
    chance = random.Random(seed)
    where = Counter()
    stage = "claim"

    def handler(number):
        async def book(session):
            nonlocal stage
            stage = "handler"
            await booking(store, number)(session)
            await session.execute(sa.select(sa.func.count()).select_from(store.effects))
            stage = "commit"

        return book

    async def step(number):
        if shields:
            return await process(checker, number, handler(number))
        claim = (await checker.awaiting.claim(ClaimRequest(key(number)))).claim
        try:
            await handler(number)(await checker.awaiting.call(checker.handler_argument, claim, AsyncSession))
            return await checker.awaiting.complete(claim)
        except BaseException:
            checker.awaiting.later(checker.desk.abandon, claim)
            raise

    async def main():
        nonlocal stage
        for number in range(rounds):
            # Uninterrupted, so that a connection is idle, and to learn how long it takes.
            turns = await turns_of(asyncio.ensure_future(process(checker, f"calm {number}", nothing)))
            stage = "claim"
            if await cancelled(step(number), chance.randrange(3 * turns)):
                where[stage] += 1
            assert_clean(checker)
        booked = await asyncio.to_thread(store.booked)
        assert set(booked) == {known for known in await asyncio.to_thread(keys, checker) if known.isdigit()}
        for number in range(rounds):
            verdict = await process(checker, number, booking(store, number))
            assert verdict is (Verdict.DUPLICATE if str(number) in booked else Verdict.ACQUIRED)

    run(main())
    assert store.booked() == {str(number): 1 for number in range(rounds)}
    if rounds > 100:
        assert min(where["claim"], where["handler"], where["commit"]) > 5, where


def test_a_cancelled_claim_that_waits_for_a_key_leaves_no_lock(store, run):
    checker = store.transactional(store.async_engine(), lock_timeout_s=20)

    async def main():
        first = (await checker.awaiting.claim(ClaimRequest(key(1)))).claim
        waiting = asyncio.create_task(checker.awaiting.claim(ClaimRequest(key(1))))
        await asyncio.sleep(0.2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert idle_of(checker) == 0
        await checker.awaiting.call(checker.desk.release, first)
        assert await process(checker, 1, booking(store, 1)) is Verdict.ACQUIRED

    run(main())
    assert store.booked() == {"1": 1}


def test_the_connection_of_a_cancelled_handler_serves_no_other_message(store, run):
    checker = store.transactional(store.async_engine())

    async def hang(session):
        await booking(store, 1)(session)
        await asyncio.sleep(60)

    async def main():
        assert await process(checker, 0, nothing) is Verdict.ACQUIRED
        assert idle_of(checker) == 1
        assert await asyncio.wait_for(asyncio.create_task(once(hang)), 20)
        assert idle_of(checker) == 0

    async def once(handle):
        task = asyncio.create_task(process(checker, 1, handle))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return True

    run(main())
    assert store.booked() == {}


@pytest.fixture
def behind(store):
    """(a checker behind a proxy, the proxy)."""
    url = sa.make_url(store.url)
    proxy = Proxy(url.host, url.port)
    engine = store.async_engine(connect_args={"port": proxy.port})
    yield store.transactional(engine), proxy
    proxy.close()


def losing(store, proxy, loss):
    """A handler that books a message, whose COMMIT or its answer is lost."""

    async def book(session):
        await booking(store, 1)(session)
        proxy.lose(b"COMMIT", loss)

    return book


def test_a_commit_whose_answer_is_lost_is_found_on_another_connection(store, behind):
    checker, proxy = behind

    async def main():
        assert await process(checker, 1, losing(store, proxy, Loss.ANSWER)) is Verdict.ACQUIRED
        assert proxy.cut_off.is_set()
        assert idle_of(checker) == 0

    asyncio.run(main())
    assert store.booked() == {"1": 1}


def test_a_commit_that_is_lost_is_unknown_until_the_next_claim_decides(store, behind):
    checker, proxy = behind

    async def main():
        with pytest.raises(CommitUnknownError):
            await process(checker, 1, losing(store, proxy, Loss.QUESTION))
        assert await process(checker, 1, booking(store, 1)) is Verdict.ACQUIRED

    asyncio.run(main())
    assert store.booked() == {"1": 1}


def test_a_connection_that_died_while_it_was_idle_costs_a_claim_nothing(store, behind):
    checker, proxy = behind

    async def main():
        assert await process(checker, 1, booking(store, 1)) is Verdict.ACQUIRED
        proxy.cut()
        assert await process(checker, 2, booking(store, 2)) is Verdict.ACQUIRED

    asyncio.run(main())
    assert store.booked() == {"1": 1, "2": 1}


def test_a_store_that_does_not_answer_is_unavailable(behind):
    checker, proxy = behind

    async def main():
        proxy.refuse()
        with pytest.raises(StoreError):
            await process(checker, 1, nothing)
        proxy.recover()
        assert await process(checker, 1, nothing) is Verdict.ACQUIRED

    asyncio.run(main())


def test_a_handler_whose_connection_is_lost_does_not_commit(store, behind):
    checker, proxy = behind

    async def lose(session):
        await booking(store, 1)(session)
        proxy.cut()
        await booking(store, 1)(session)

    async def main():
        with pytest.raises(DoomedTransactionError):
            await process(checker, 1, lose)
        assert await process(checker, 1, booking(store, 1)) is Verdict.ACQUIRED

    asyncio.run(main())
    assert store.booked() == {"1": 1}


def test_a_second_cancellation_does_not_interrupt_a_release(store, run):
    checker = store.transactional(store.async_engine(), lock_timeout_s=20)

    async def main():
        claim = (await checker.awaiting.claim(ClaimRequest(key(1)))).claim
        release = asyncio.create_task(shielded(checker.awaiting.call(checker.desk.release, claim)))
        for _ in range(3):
            await asyncio.sleep(0)
            release.cancel()
        with pytest.raises(asyncio.CancelledError):
            await release
        assert await process(checker, 1, booking(store, 1)) is Verdict.ACQUIRED

    run(main())
    assert store.booked() == {"1": 1}
