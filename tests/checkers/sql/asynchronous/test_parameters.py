"""The second parameter of async handlers: the application's own AsyncSession, on the checker's engine."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from idempotent import Registry, Worker
from idempotent.adapters import MemoryAdapter, MemoryBroker
from idempotent.checkers import OffsetChecker, TransactionalSqlChecker
from idempotent.errors import ConfigurationError
from tests.checkers.sql.asynchronous.driving import booking, message, process


def test_the_handlers_second_parameter_is_what_the_application_made(store):
    class Inner(Session):
        pass

    class Outer(AsyncSession):
        sync_session_class = Inner

    maker = async_sessionmaker(store.async_engine(), class_=Outer, expire_on_commit=False, info={"a": 1})
    checker = store.transactional(maker)
    checker.check_argument(Outer)
    checker.check_argument(AsyncSession)
    checker.check_argument(AsyncConnection)

    async def look(session):
        assert isinstance(session, Outer)
        assert isinstance(session.sync_session, Inner)
        assert session.info["a"] == 1
        assert await session.connection() is await session.connection()
        await booking(store, 1)(session)

    asyncio.run(process(checker, 1, look, Outer))
    assert store.booked() == {"1": 1}


def test_the_wrong_pair_of_session_and_engine_is_refused(store):
    asynchronous, synchronous = store.transactional(store.async_engine()), store.transactional()
    for kind in (Session, sa.Connection):
        with pytest.raises(ConfigurationError, match=r"AsyncSession .* create_engine\(url\)"):
            asynchronous.check_argument(kind)
    for kind in (AsyncSession, AsyncConnection):
        with pytest.raises(ConfigurationError, match=r"create_async_engine\(url\)"):
            synchronous.check_argument(kind)

    class Mine(AsyncSession):
        pass

    with pytest.raises(ConfigurationError, match=r"async_sessionmaker\(engine, class_=Mine\)"):
        asynchronous.check_argument(Mine)


async def awaited(message):
    pass


async def awaited_with_a_session(message, session: AsyncSession):
    pass


def plain(message):
    pass


def plain_with_a_session(message, session: Session):
    pass


@pytest.mark.parametrize("kind", [TransactionalSqlChecker, OffsetChecker])
@pytest.mark.parametrize(
    ("handler", "is_async", "said"),
    [
        (awaited, False, r"is an `async def`.* create_async_engine\(.* or write a plain `def`"),
        (awaited_with_a_session, False, r"is an `async def`.* create_async_engine\("),
        (plain, True, r"is a plain `def`.* create_engine\(.* or write an `async def`"),
        (plain_with_a_session, True, r"is a plain `def`.* create_engine\("),
    ],
)
@pytest.mark.parametrize("when", ["declared", "checked", "called", "started"])
def test_a_handler_and_an_engine_of_two_kinds_are_refused_before_a_message_runs(
    store, kind, handler, is_async, said, when
):
    engine = store.async_engine() if is_async else store.engine()
    checker = kind(engine, table=store.table)
    store.opened.callback(checker.close)
    registry, broker = Registry(), MemoryBroker()
    if when == "declared":
        with pytest.raises(ConfigurationError, match=said):
            registry.consumer("orders", checker=checker)(handler)
        return
    consumer = registry.consumer("orders", checker="db")(handler)
    registry.checker("db", checker)
    broker.publish(message(1))
    ways = {
        "checked": registry.check,
        "started": Worker(registry, MemoryAdapter(broker, until_empty=True)).run,
        "called": lambda: drive(consumer, message(1)),
    }
    with pytest.raises(ConfigurationError, match=said):
        ways[when]()
    assert broker.backlog("orders") == 1


def drive(consumer, given):
    if consumer.handler.is_async:
        return asyncio.run(consumer.process(given))
    return consumer.process(given)


def make_session(**options):
    return Session(**options)


def test_an_async_sessionmaker_that_leaves_the_transaction_is_refused(store):
    engine, other = store.async_engine(), store.async_engine()

    class Routing(Session):
        def get_bind(self, *arguments, **options):
            return other.sync_engine

    for maker, told in (
        (async_sessionmaker(), "has no engine"),
        (async_sessionmaker(engine, binds={sa.MetaData: other}), "sends statements to"),
        (async_sessionmaker(engine, sync_session_class=Routing), "sends statements to"),
        (async_sessionmaker(engine, twophase=True), "twophase"),
        (
            async_sessionmaker(engine, execution_options={"isolation_level": "SERIALIZABLE"}),
            "isolation_level",
        ),
        (async_sessionmaker(engine, sync_session_class=make_session), "no class"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            store.transactional(maker)
