"""`async def` handlers send in their AsyncSession."""

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from idempotent import Message, Outcome, Registry
from idempotent.errors import ConfigurationError, OutboxError
from idempotent.outbox import Outbox, Relay
from tests.outbox.picky import Picky, until
from tests.support.stores import ASYNC


@pytest.fixture(params=ASYNC)
def sql_store(request):
    from tests.support.stores import open_store

    yield from open_store(request.param, request, reuse=True)


def note(text):
    return Message("invoices", text.encode())


def test_what_an_async_session_sends_commits_with_it(outbox, sql_store, waiting):
    engine = sql_store.async_engine()

    async def run():
        async with AsyncSession(engine) as session:
            outbox.send(session, note("lost"))
            await session.rollback()
            outbox.send(session, note("kept"))
            savepoint = await session.begin_nested()
            outbox.send(session, note("lost in a savepoint"))
            await savepoint.rollback()
            await session.commit()
        async with engine.begin() as connection:
            with pytest.raises(ConfigurationError, match="send_on"):
                outbox.send(connection, note("refused"))
            await outbox.send_on(connection, note("of a connection"), order_key="k")
        await engine.dispose()

    asyncio.run(run())
    assert waiting() == ["kept", "of a connection"]


def test_a_connection_that_is_not_asynchronous_is_refused_with_the_way_out(outbox, sql_store):
    with (
        sql_store.admin_engine.connect() as connection,
        pytest.raises(ConfigurationError, match=r"outbox\.send"),
    ):
        asyncio.run(outbox.send_on(connection, note("1")))


def test_messages_wait_until_the_table_is_there(outbox, sql_store, tables, waiting):
    engine = sql_store.async_engine()
    checker = sql_store.transactional(engine)

    async def handle(message, session: AsyncSession):
        await session.execute(sql_store.effects.insert().values(id=message.id))
        outbox.send(session, note("1"))

    consumer = Registry().consumer("orders", group="billing", checker=checker, max_attempts=1)(handle)

    async def run():
        order = Message("orders", b"", id="1")
        tables.waiting.drop(sql_store.admin_engine)
        for _ in range(2):
            result = await consumer.process(order)
            assert result.outcome is Outcome.UNAVAILABLE
            assert isinstance(result.error, OutboxError)
        tables.waiting.create(sql_store.admin_engine)
        assert (await consumer.process(order)).outcome is Outcome.PROCESSED
        await engine.dispose()

    asyncio.run(run())
    assert waiting() == ["1"]
    assert sql_store.booked() == {"1": 1}


def test_an_async_handler_sends_with_its_effect(outbox, sql_store, waiting):
    engine = sql_store.async_engine()
    checker = sql_store.transactional(engine)

    async def handle(message, session: AsyncSession):
        await session.execute(sql_store.effects.insert().values(id=message.id))
        outbox.send(session, note(f"of {message.id}"))
        if message.id == "2":
            raise ValueError

    consumer = Registry().consumer("orders", group="billing", checker=checker)(handle)

    async def run():
        results = await asyncio.gather(*(consumer.process(Message("orders", id=str(n))) for n in range(4)))
        await engine.dispose()
        return [result.outcome for result in results]

    outcomes = asyncio.run(run())
    assert outcomes.count(Outcome.PROCESSED) == 3
    assert sorted(waiting()) == ["of 0", "of 1", "of 3"]


def test_a_relay_reads_through_an_async_engine(sql_store, tables, waiting):
    outbox = Outbox(sql_store.async_engine(), table=sql_store.table)
    adapter = Picky()
    try:
        with sql_store.admin_engine.begin() as connection:
            outbox.send(connection, note("1"))
        with Relay(outbox, adapter, poll_s=0.05):
            until(lambda: adapter.bodies == ["1"] and not waiting())
    finally:
        outbox.close()
