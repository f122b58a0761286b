"""Cancellations and lost answers leave neither a lock, nor a dirty connection, nor an effect without its key."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from contextlib import nullcontext, suppress

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from idempotent import Outcome
from idempotent.claims import ClaimRequest
from idempotent.errors import CommitUnknownError, DoomedTransactionError, StoreError
from idempotent.testing.proxy import Loss, Proxy
from tests.checkers.sql.asynchronous.driving import (
    booking,
    consumer_of,
    idle_of,
    key,
    message,
    nothing,
    process,
)
from tests.support.births import unwarned

LOOPS = ("asyncio", "uvloop")


@pytest.fixture(params=LOOPS)
def run(request):
    """Runs a coroutine on a new event loop of either kind."""
    if request.param == "asyncio":
        return asyncio.run
    return pytest.importorskip("uvloop").run


def assert_clean(checker):
    """The idle connections are in no transaction, and nothing is under way on them."""
    for idle, _ in checker._transactions._connections._idle._by_loop.values():
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


async def interrupted(step, turns, *, closes):
    """Run a step, and cancel or close it after so many turns of the event loop. Whether it had not ended by then."""
    task = asyncio.ensure_future(step)
    await turns_of(task, turns)
    was_running = not task.done()
    if closes:
        step.close()
    task.cancel()
    with suppress(asyncio.CancelledError, RuntimeError):  # a commit goes on to its end; a closed step cannot
        await task
    return was_running


class Deliveries:
    """One message at a time, or groups of three, to a consumer of an async checker.

    Attributes:
        stage: what was under way at last.
    """

    def __init__(self, store, checker, how):
        self.stage = "claim"
        self._store = store
        self._single = how == "one"
        batch = how == "batch"
        self._consumer = consumer_of(checker, self._all if batch else self._one, batch=batch)

    def of(self, name):
        return [message(f"{name}-{part}") for part in range(1 if self._single else 3)]

    async def deliver(self, name):
        self.stage = "claim"
        messages = self.of(name)
        if self._single:
            return [await self._consumer.process(*messages)]
        return await self._consumer.process_many(messages)

    async def _one(self, given, session: AsyncSession):
        await self._all([given], session)

    async def _all(self, given, session: AsyncSession):
        self.stage = "handler"
        for each in given:
            await booking(self._store, each.id)(session)
        await session.execute(sa.select(sa.func.count()).select_from(self._store.effects))
        self.stage = "commit"


@pytest.mark.parametrize(
    ("rounds", "seed"), [(20, 1), pytest.param(400, 2, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("closes", [False, True], ids=["cancelled", "closed"])
@pytest.mark.parametrize(
    ("run", "how"),
    [(loop, "one") for loop in LOOPS] + [(LOOPS[0], how) for how in ("group", "savepoints", "batch")],
    indirect=["run"],
)
def test_what_is_interrupted_anywhere_runs_once_in_the_end(store, run, rounds, seed, closes, how):
    checker = store.transactional(store.async_engine(), lock_timeout_s=20, savepoints=how == "savepoints")
    deliveries = Deliveries(store, checker, how)
    chance, where = random.Random(seed), Counter()

    async def main():
        for number in range(rounds):
            # Uninterrupted, so that a connection is idle, and to learn how long it takes.
            turns = await turns_of(asyncio.ensure_future(deliveries.deliver(f"calm-{number}")))
            if await interrupted(deliveries.deliver(number), chance.randrange(turns), closes=closes):
                where[deliveries.stage] += 1
            assert_clean(checker)
        booked = await asyncio.to_thread(store.booked)
        for number in range(rounds):
            results = await deliveries.deliver(number)
            for result, each in zip(results, deliveries.of(number), strict=True):
                # The COMMIT of a step that was closed may have been on its way when the effects were read.
                assert result.outcome in (Outcome.DUPLICATE, Outcome.PROCESSED)
                assert result.outcome is Outcome.DUPLICATE or each.id not in booked
        await asyncio.to_thread(no_attempts, checker)

    # What is closed cannot wait for its connection, which may be found open long after this test.
    with unwarned() if closes else nullcontext():
        run(main())
    assert store.booked() == {
        each.id: 1
        for name in ("calm-", "")
        for number in range(rounds)
        for each in deliveries.of(f"{name}{number}")
    }
    if rounds > 100:
        assert min(where["claim"], where["handler"], where["commit"]) > 5, where


def no_attempts(checker):
    """An interrupted message was not to blame."""
    for number in range(2):
        known = checker.admin().get(key(f"{number}-0"))
        assert known is not None
        assert known.attempts == 0


def test_a_cancelled_claim_that_waits_for_a_key_leaves_no_lock(store, run):
    checker, other = (store.transactional(store.async_engine(), lock_timeout_s=20) for _ in range(2))

    async def main():
        first = (await other.awaiting.claim(ClaimRequest(key(1)))).claim
        waiting = asyncio.create_task(checker.awaiting.claim(ClaimRequest(key(1))))
        await asyncio.sleep(0.2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert idle_of(checker) == 0
        await other.awaiting.call(other.protocol.release, first)
        assert await process(checker, 1, booking(store, 1)) is Outcome.PROCESSED

    run(main())
    assert store.booked() == {"1": 1}


def test_the_connection_of_a_cancelled_handler_serves_no_other_message(store, run):
    checker = store.transactional(store.async_engine())

    async def hang(session):
        await booking(store, 1)(session)
        await asyncio.sleep(60)

    async def main():
        assert await process(checker, 0, nothing) is Outcome.PROCESSED
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
        assert await process(checker, 1, losing(store, proxy, Loss.ANSWER)) is Outcome.PROCESSED
        assert proxy.cut_off.is_set()
        assert idle_of(checker) == 0

    asyncio.run(main())
    assert store.booked() == {"1": 1}


def test_a_commit_that_is_lost_is_unknown_until_the_next_claim_decides(store, behind):
    checker, proxy = behind

    async def main():
        with pytest.raises(CommitUnknownError):
            await process(checker, 1, losing(store, proxy, Loss.QUESTION))
        assert await process(checker, 1, booking(store, 1)) is Outcome.PROCESSED

    asyncio.run(main())
    assert store.booked() == {"1": 1}


def test_a_connection_that_died_while_it_was_idle_costs_a_claim_nothing(store, behind):
    checker, proxy = behind

    async def main():
        assert await process(checker, 1, booking(store, 1)) is Outcome.PROCESSED
        proxy.cut()
        assert await process(checker, 2, booking(store, 2)) is Outcome.PROCESSED

    asyncio.run(main())
    assert store.booked() == {"1": 1, "2": 1}


def test_a_store_that_does_not_answer_is_unavailable(behind):
    checker, proxy = behind

    async def main():
        proxy.refuse()
        with pytest.raises(StoreError):
            await process(checker, 1, nothing)
        proxy.recover()
        assert await process(checker, 1, nothing) is Outcome.PROCESSED

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
        assert await process(checker, 1, booking(store, 1)) is Outcome.PROCESSED

    asyncio.run(main())
    assert store.booked() == {"1": 1}


def test_a_second_cancellation_does_not_interrupt_a_release(store, run):
    checker = store.transactional(store.async_engine(), lock_timeout_s=20)

    async def main():
        begun = asyncio.Event()

        async def hang(session):
            await booking(store, 1)(session)
            begun.set()
            await asyncio.sleep(60)

        task = asyncio.create_task(process(checker, 1, hang))
        await begun.wait()
        for _ in range(4):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await process(checker, 1, booking(store, 1)) is Outcome.PROCESSED

    run(main())
    assert store.booked() == {"1": 1}
