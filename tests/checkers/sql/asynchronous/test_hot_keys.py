"""Many tasks with one key hold nothing that the others need."""

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from idempotent import Message, Outcome
from tests.checkers.sql.asynchronous.driving import consumer_of

TASKS, CONNECTIONS = 50, 5


@pytest.mark.parametrize("redelivered", [False, True])
def test_fifty_tasks_with_one_key_take_one_connection_of_five(store, redelivered):
    engine = store.async_engine(pool_size=CONNECTIONS, max_overflow=0, pool_timeout=1)
    checker = store.transactional(engine)
    others: list[str] = []

    async def main():
        begun, gate = asyncio.Event(), asyncio.Event()

        async def handle(message, session):
            await session.execute(store.effects.insert().values(id=message.id))
            if message.id == "hot":
                begun.set()
                await gate.wait()
            else:
                others.append(message.id)

        handle.__annotations__["session"] = AsyncSession
        consumer = consumer_of(checker, handle)
        first = asyncio.create_task(consumer.process(Message("orders", id="hot")))
        await begun.wait()
        copies = [Message("orders", id="hot", redelivered=redelivered) for _ in range(TASKS)]
        results = await asyncio.gather(*map(consumer.process, copies))
        assert {result.outcome for result in results} == {Outcome.IN_PROGRESS}
        names = [str(number) for number in range(CONNECTIONS - 1)]
        results = await asyncio.gather(*(consumer.process(Message("orders", id=name)) for name in names))
        assert {result.outcome for result in results} == {Outcome.PROCESSED}
        assert sorted(others) == names
        gate.set()
        assert (await first).outcome is Outcome.PROCESSED
        assert (await consumer.process(copies[0])).outcome is Outcome.DUPLICATE

    asyncio.run(main())
    assert store.booked()["hot"] == 1
