"""An async handler cannot end the transaction that its key lives in."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import registry as mappers

from idempotent import Outcome
from idempotent.claims import ClaimRequest
from idempotent.errors import DeadKeyError, TransactionEscapedError
from tests.checkers.sql.asynchronous.driving import booking, key, nothing, process
from tests.checkers.sql.booking import keys

PROCESSED = Outcome.PROCESSED


async def raw_commit(session):
    driver = (await (await session.connection()).get_raw_connection()).driver_connection
    await driver.commit()


async def swallow(session):
    with suppress(TransactionEscapedError):
        await session.commit()


async def leave(session):
    async with session:
        pass


async def commit_connection(session):
    await (await session.connection()).commit()


ENDS = {
    "session.commit": lambda session: session.commit(),
    "session.rollback": lambda session: session.rollback(),
    "session.close": lambda session: session.close(),
    "session.reset": lambda session: session.reset(),
    "session.invalidate": lambda session: session.invalidate(),
    "COMMIT": lambda session: session.execute(sa.text("COMMIT")),
    "swallowed commit": swallow,
    "end of async with": leave,
    "run_sync": lambda session: session.run_sync(lambda inner: inner.commit()),
    "transaction": lambda session: session.get_transaction().commit(),
    "connection": commit_connection,
}


@pytest.mark.parametrize("options", [{}, {"strict": True}], ids=str)
@pytest.mark.parametrize("end", ENDS)
def test_a_handler_cannot_end_the_transaction(store, end, options):
    checker = store.transactional(store.async_engine(), **options)

    async def handle(session):
        await booking(store, 1)(session)
        await ENDS[end](session)

    async def main():
        with pytest.raises(TransactionEscapedError):
            await process(checker, 1, handle)
        assert await process(checker, 2, booking(store, 2)) is PROCESSED

    asyncio.run(main())
    assert store.booked() == {"2": 1}
    assert keys(checker) == {"2"}


def test_a_commit_of_the_drivers_connection_is_noticed(store):
    checker = store.transactional(store.async_engine())

    async def handle(session):
        await booking(store, 1)(session)
        await raw_commit(session)
        await booking(store, "stray")(session)

    async def main():
        with pytest.raises(TransactionEscapedError):
            await process(checker, 1, handle)
        with pytest.raises(DeadKeyError):
            await process(checker, 1, nothing)

    asyncio.run(main())
    assert store.booked() == {"1": 1}


def test_a_commit_that_only_the_drivers_connection_shows_is_noticed(store):
    checker = store.transactional(store.async_engine())

    async def main():
        claim = (await checker.awaiting.claim(ClaimRequest(key(1)))).claim
        session = await checker.awaiting.call(checker.handler_argument, claim, AsyncSession)
        await booking(store, 1)(session)
        await claim.transaction.driver.raw.driver.commit()
        with pytest.raises(TransactionEscapedError, match="the transaction ended while the handler ran"):
            await checker.awaiting.complete(claim)

    asyncio.run(main())


def test_rows_cannot_be_discarded_without_notice(store):
    class Effect:
        def __init__(self, id):
            self.id = id

    effects = store.effects.to_metadata(sa.MetaData())
    mappers().map_imperatively(Effect, effects, primary_key=[effects.c.id])
    checker = store.transactional(store.async_engine())

    async def add(session):
        session.add(Effect("1"))

    async def add_and_close(session):
        session.add(Effect("2"))
        await session.close()

    async def main():
        assert await process(checker, 1, add) is PROCESSED
        with pytest.raises(TransactionEscapedError):
            await process(checker, 2, add_and_close)

    asyncio.run(main())
    assert store.booked() == {"1": 1}
