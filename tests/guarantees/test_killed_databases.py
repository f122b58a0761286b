"""The database is killed while transactional handlers run: messages wait, and the log says so once, not for each."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from idempotent import Message, Outcome, Registry
from idempotent.checkers import TransactionalSqlChecker
from idempotent.migrations import upgrade
from tests.support.services import PrivateMariaDb, PrivatePostgres
from tests.support.stores import ASYNC_URLS

KINDS = {"mysql": PrivateMariaDb, "postgres": PrivatePostgres}
MANY = 30


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def server(kind, spare):
    server = spare(KINDS[kind])
    upgrade(server.url)
    yield server
    server.recover()


def group():
    return [Message("orders", id=str(number)) for number in range(MANY)]


def check(results, caplog):
    assert {result.outcome for result in results} == {Outcome.UNAVAILABLE}
    told = [record.event for record in caplog.records if record.levelname == "WARNING"]
    assert "release_failed" not in told, "the database has rolled back: nothing is left to free"
    assert told.count("store_failed") == 1
    assert len(told) <= 3, told


@pytest.mark.slow
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("savepoints", [False, True])
def test_no_key_is_said_to_wait_for_a_lease(server, caplog, batch, savepoints):
    with closing(TransactionalSqlChecker(server.url, savepoints=savepoints)) as checker:

        def die(session):
            server.kill()
            session.execute(sa.text("SELECT 1"))

        def one(message: Message, session: Session) -> None:
            die(session)

        def all_together(messages: list[Message], session: Session) -> None:
            die(session)

        handler = all_together if batch else one
        consumer = Registry().consumer("orders", checker=checker, batch=batch)(handler)
        check(consumer.process_many(group()), caplog)


def test_nor_of_messages_that_run_at_the_same_time(kind, server, caplog):
    url = ASYNC_URLS[kind](sa.make_url(server.url))
    running = 0

    async def main():
        all_run = asyncio.Event()
        engine = create_async_engine(url, pool_size=MANY)
        checker = TransactionalSqlChecker(engine)

        @Registry().consumer("orders", checker=checker)
        async def consumer(message: Message, session: AsyncSession) -> None:
            nonlocal running
            running += 1
            if running == MANY:
                server.kill()
                all_run.set()
            await all_run.wait()
            await session.execute(sa.text("SELECT 1"))

        results = await asyncio.gather(*map(consumer.process, group()))
        checker.close()
        await engine.dispose()
        return results

    check(asyncio.run(main()), caplog)
