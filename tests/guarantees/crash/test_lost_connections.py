"""A message whose own work ends its connection is not repeated for ever."""

import asyncio

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from idempotent import Backoff, Message, Outcome, Registry
from tests.support.stores import ASYNC, open_store

ENDS = {
    "mysql": "KILL CONNECTION_ID()",
    "postgres": "SELECT pg_terminate_backend(pg_backend_pid())",
}


@pytest.fixture(params=ASYNC)
def store(request):
    yield from open_store(request.param, request, reuse=True)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("group", [False, True], ids=["single", "group"])
def test_a_message_that_ends_its_connection_is_dead_in_the_end(store, group, is_async):
    runs = []
    checker = store.transactional(store.async_engine() if is_async else None)
    consumer = Registry().consumer("orders", checker=checker, max_attempts=2, backoff=Backoff(0, 0))

    if is_async:

        @consumer
        async def handle(message: Message, session: AsyncSession) -> None:
            await session.execute(store.effects.insert().values(id=message.id))
            if message.id == "bad":
                runs.append(message.id)
                await session.execute(sa.text(ENDS[store.kind]))
    else:

        @consumer
        def handle(message: Message, session: Session) -> None:
            session.execute(store.effects.insert().values(id=message.id))
            if message.id == "bad":
                runs.append(message.id)
                session.execute(sa.text(ENDS[store.kind]))

    outcomes, goods = [], []
    with asyncio.Runner() as runner:
        run = runner.run if is_async else lambda results: results
        for number in range(20):
            messages = [Message("orders", id=name) for name in (f"good {number}", "bad")]
            if group:
                good, bad = run(handle.process_many(messages))
            else:
                good, bad = (run(handle.process(message)) for message in messages)
            goods.append(good.outcome)
            outcomes.append(bad.outcome)
            if bad.outcome is Outcome.DEAD:
                break
    # MySQL answers as to KILL QUERY, which is a failure at once.
    assert outcomes[-2:] == [Outcome.FAILED, Outcome.DEAD]
    assert outcomes[:-2] in ([Outcome.UNAVAILABLE], [])
    assert set(goods) == {Outcome.PROCESSED}
    assert len(runs) <= 5 * len(outcomes)
    assert "bad" not in store.booked()
