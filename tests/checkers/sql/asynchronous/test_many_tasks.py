"""Many tasks on one engine: no more connections than its pool would lend."""

import asyncio

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from idempotent import Message, Outcome, Registry
from tests.support.stores import ASYNC, open_store


@pytest.fixture(params=ASYNC)
def store(request):
    yield from open_store(request.param, request, reuse=True)


def processed_at_once(store, engine, count, handle):
    checker = store.transactional(engine)
    consumer = Registry().consumer("orders", checker=checker)(handle)

    async def main():
        return await asyncio.gather(*(consumer.process(Message("orders", id=str(n))) for n in range(count)))

    return checker, [result.outcome for result in asyncio.run(main())]


def test_sixty_tasks_share_five_connections(store):
    at_work = most = 0
    full = asyncio.Event()

    async def handle(message: Message, session: AsyncSession):
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        if at_work == 5:
            full.set()
        await session.execute(store.effects.insert().values(id=message.id))
        await asyncio.wait_for(full.wait(), 60)
        at_work -= 1

    engine = store.async_engine(pool_size=3, max_overflow=2)
    _, outcomes = processed_at_once(store, engine, 60, handle)
    assert outcomes == [Outcome.PROCESSED] * 60
    assert most == 5
    assert store.booked() == {str(n): 1 for n in range(60)}


def test_failures_give_their_connections_back(store):
    async def handle(message: Message, session: AsyncSession):
        await session.execute(sa.text("SELECT 1"))
        raise ValueError(message.id)

    engine = store.async_engine(pool_size=1, max_overflow=1)
    checker, outcomes = processed_at_once(store, engine, 20, handle)
    assert outcomes == [Outcome.FAILED] * 20
    assert not checker._transactions._connections._in_use


def test_cancelled_tasks_give_their_connections_back(store):
    asleep = asyncio.Semaphore(0)

    async def handle(message: Message, session: AsyncSession):
        await session.execute(sa.text("SELECT 1"))
        asleep.release()
        await asyncio.sleep(60)

    checker = store.transactional(store.async_engine(pool_size=2, max_overflow=0))
    consumer = Registry().consumer("orders", checker=checker)(handle)

    async def main():
        for _ in range(3):
            tasks = [asyncio.create_task(consumer.process(Message("orders", id=str(n)))) for n in range(6)]
            async with asyncio.timeout(
                60
            ):  # asyncmy itself ignores a cancellation in the middle of an answer
                await asleep.acquire()
                await asleep.acquire()
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(one) for one in ended} == {asyncio.CancelledError}

    asyncio.run(main())
    assert not checker._transactions._connections._in_use


def test_a_task_that_waits_too_long_for_a_connection_holds_its_message(store):
    async def handle(message: Message, session: AsyncSession):
        await asyncio.sleep(0.5)

    engine = store.async_engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    _, outcomes = processed_at_once(store, engine, 2, handle)
    assert sorted(outcome.value for outcome in outcomes) == ["processed", "unavailable"]
