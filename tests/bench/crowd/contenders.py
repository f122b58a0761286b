"""The crowds on a store: async consumers, the same by hand, idemkit, and the threads of a Worker."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from examples.demo.stage.databases import async_url
from idempotent import Message, Registry
from idempotent.checkers import MemoryChecker, RedisChecker, SqlChecker, TransactionalSqlChecker
from idempotent.checkers.base import AbstractIdempotentChecker
from tests.bench.bare import keys
from tests.bench.checkers import effects, engine_at, raise_error
from tests.bench.contest import SUBJECT
from tests.bench.crowd.calls import Crowd, Opened, Turn, by_tasks, by_thread
from tests.bench.crowd.names import APART, BARE, BY_HAND, HOP, SYNC, TASKS, THREADS, with_callers
from tests.bench.crowd.working import over_memory
from tests.bench.peers import IDEMKIT


def memory() -> list[Crowd]:
    """An async consumer with MemoryChecker, and its bare handler."""

    @asynccontextmanager
    async def bare() -> Opened:
        yield _nothing

    ours = partial(_consumer, MemoryChecker)
    return [
        Crowd(with_callers("Memory"), BARE, 1, by_tasks(bare, 1), 20_000),
        Crowd(with_callers("Memory"), "MemoryChecker", 1, by_tasks(ours, 1), 20_000),
    ]


def leased(where: str, who: str, checker: Callable[..., AbstractIdempotentChecker]) -> list[Crowd]:
    """One task, many tasks, one thread, and the threads of a Worker, with and without natural batching."""

    @asynccontextmanager
    async def hop() -> Opened:
        loop = asyncio.get_running_loop()
        yield lambda _: loop.run_in_executor(None, _empty)

    def thread(**options: Any) -> Callable[[int], Turn]:
        def turn(count: int) -> Turn:
            made = checker(**options)
            consumer = _register(made, lambda _: None)
            try:
                return by_thread(lambda message: raise_error(consumer.process(message)))(count)
            finally:
                made.close()

        return turn

    return [
        Crowd(where, HOP, 1, by_tasks(hop, 1), 2_000),
        Crowd(where, who, 1, by_tasks(partial(_consumer, checker), 1), 500),
        Crowd(where, who, TASKS, by_tasks(partial(_consumer, checker), TASKS), 10_000),
        Crowd(where, f"{who}, {SYNC}", 1, thread(), 500),
        Crowd(where, f"{who}, {SYNC}, {APART}", 1, thread(combine=False), 500),
        *over_memory(where, who, checker),
    ]


def transactional(where: str, url: str) -> list[Crowd]:
    """A transactional consumer on an AsyncEngine, and the same by hand."""

    @asynccontextmanager
    async def by_hand() -> Opened:
        engine = create_async_engine(async_url(url))
        make = async_sessionmaker(engine)

        async def call(message: Message) -> None:
            async with make() as session, session.begin():
                key = f"{secrets.token_hex(10)}".encode()
                await session.execute(insert(keys), {"k": key, "status": 2, "at": 0})
                await session.execute(insert(effects), {"message": message.id, "amount": 1})

        try:
            yield call
        finally:
            await engine.dispose()

    async def writes(message: Message, session: AsyncSession) -> None:
        await session.execute(insert(effects), {"message": message.id, "amount": 1})

    ours = partial(_consumer, lambda: TransactionalSqlChecker(async_url(url)), writes)
    return [
        Crowd(where, BY_HAND, 1, by_tasks(by_hand, 1), 300),
        Crowd(where, "TransactionalSqlChecker, async", 1, by_tasks(ours, 1), 300),
    ]


def idemkit(url: str, sizes: tuple[int, ...] = (1, 10, 50, 200)) -> list[Crowd]:
    """idemkit on Redis, with several numbers of tasks, of which the best one counts."""

    @asynccontextmanager
    async def opened(size: int) -> Opened:
        from idemkit import ConsumerAction, IdempotentConsumer, QueueConfig, RedisBackend

        logging.getLogger("idemkit").setLevel(logging.ERROR)
        backend = RedisBackend.from_url(url, namespace=secrets.token_hex(4), max_connections=size + 2)
        config = QueueConfig(dedup_id=lambda message: message.id, visibility_timeout_seconds=30)
        consumer = IdempotentConsumer(backend=backend, config=config)
        consumer.handle(_nothing)

        async def call(message: Message) -> None:
            result = await consumer.dispatch(message)
            if result.action is not ConsumerAction.ACK:
                raise RuntimeError(f"idemkit did not process {message.id!s}: {result}")

        try:
            yield call
        finally:
            await backend.aclose()

    where = with_callers("Redis")
    return [Crowd(where, IDEMKIT, size, by_tasks(partial(opened, size), size), 1_000) for size in sizes]


def redis(url: str) -> list[Crowd]:
    """RedisChecker and idemkit."""
    where = with_callers("Redis")
    return [*leased(where, "RedisChecker", lambda **options: RedisChecker(url, **options)), *idemkit(url)]


def sql(where: str, url: str) -> list[Crowd]:
    """SqlChecker, and TransactionalSqlChecker on an AsyncEngine."""
    # As large as the guide says: of a smaller pool most threads of the Worker would connect for each statement.
    engine, where = engine_at(url, pool_size=THREADS), with_callers(where)
    keys.metadata.create_all(engine)
    crowds = leased(where, "SqlChecker", lambda **options: SqlChecker(engine, **options))
    return [*(replace(crowd, after=engine.dispose) for crowd in crowds), *transactional(where, url)]


async def _nothing(_: object) -> None:
    """What the message is about is not what is measured."""


def _empty() -> None:
    """What a thread does that is only hopped to."""


def _register(checker: AbstractIdempotentChecker, handler: Callable[..., Any]) -> Any:
    return Registry().consumer(SUBJECT, checker=checker, group=secrets.token_hex(4))(handler)


@asynccontextmanager
async def _consumer(
    checker: Callable[[], AbstractIdempotentChecker], handler: Callable[..., Awaitable[None]] = _nothing
) -> Opened:
    made = checker()
    consumer = _register(made, handler)

    async def call(message: Message) -> None:
        raise_error(await consumer.process(message))

    try:
        yield call
    finally:
        await asyncio.to_thread(made.close)


def all_of(where: str, url: str) -> list[Crowd]:
    """The crowds on one store."""
    return redis(url) if where == "Redis" else sql(where, url)
