"""faststream-outbox, for PostgreSQL alone: as its documentation says for speed, in the settings quickest here.

Its relay is a handler whose result a decorator publishes to the broker. It keeps no order within a key.
https://faststream-outbox.modern-python.org/usage/relay/ and https://faststream-outbox.modern-python.org/concepts/performance/
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from tests.bench.brokers.places import BODY, Place
from tests.bench.outbox.names import BATCH, PEER
from tests.bench.outbox.relaying import IDLE_S, LOOK_S, PATIENCE_S, WARM, RelayContender

# Each publishes one message at a time, and keeps a connection of its own. Of 1 to 128 none was quicker by more than the
# noise, and 64 fit into PostgreSQL's default of 100 connections.
_WORKERS: Final = 64
_DELETED_TOGETHER: Final = 100
_QUEUE: Final = "orders"


def relay(url: str, place: Place) -> RelayContender:
    """Its relay, from the PostgreSQL with this URL."""
    return RelayContender(
        PEER, partial(_publish, url, place.url), partial(_publish_one_by_one, url, place.url)
    )


def _publish(url: str, broker_url: str, subject: str, count: int) -> tuple[float, float]:
    async def measure() -> tuple[float, float]:
        async with _running(url, broker_url, subject) as running:
            began, cpu = await running.commit(count), time.process_time()
            await running.wait_until_empty()
            return time.perf_counter() - began, time.process_time() - cpu

    return asyncio.run(measure())


def _publish_one_by_one(url: str, broker_url: str, subject: str, messages: int) -> list[float]:
    async def measure() -> list[float]:
        confirmed, calls = asyncio.Event(), []
        async with _running(url, broker_url, subject, _watching(subject, confirmed)) as running:
            for _ in range(messages):
                await asyncio.sleep(IDLE_S)
                confirmed.clear()
                await running.commit(1)
                committed = time.perf_counter()
                async with asyncio.timeout(PATIENCE_S):
                    await confirmed.wait()
                calls.append(time.perf_counter() - committed)
        return calls

    return asyncio.run(measure())


@dataclass(slots=True)
class _Running:
    """Its relay in this process, which has published some messages already."""

    engine: AsyncEngine
    table: sa.Table
    outbox: Any
    sent: int = 0
    handled: int = 0

    async def commit(self, count: int) -> float:
        """Send in one transaction. Returns when it began to commit."""
        self.sent += count
        async with AsyncSession(self.engine) as session:
            await self.outbox.publish_batch(*[BODY] * count, queue=_QUEUE, session=session)
            began = time.perf_counter()
            await session.commit()
        return began

    async def wait_until_empty(self) -> None:
        """Wait until all messages are published, and deleted."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if self.handled >= self.sent and await self._is_empty():
                    return
                await asyncio.sleep(LOOK_S)

    async def _is_empty(self) -> bool:
        async with self.engine.connect() as connection:
            return (await connection.execute(sa.select(self.table.c.id).limit(1))).first() is None


@asynccontextmanager
async def _running(url: str, broker_url: str, subject: str, *middlewares: Any) -> AsyncIterator[_Running]:
    from faststream_outbox import OutboxBroker, make_outbox_table, outbox_autovacuum_ddl

    asyncpg = sa.make_url(url).set(drivername="postgresql+asyncpg")
    engine = create_async_engine(asyncpg, pool_size=_WORKERS + 1)  # the workers', and one that fetches
    metadata = sa.MetaData()
    table = make_outbox_table(metadata, table_name=f"peer_{secrets.token_hex(4)}")
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.execute(sa.text(outbox_autovacuum_ddl(table.name)))
    # Without a logger of ours it writes two lines a message.
    outbox = OutboxBroker(engine, outbox_table=table, middlewares=middlewares, logger=logging.getLogger(PEER))
    broker, publisher = _publisher(broker_url, subject)
    running = _Running(engine, table, outbox)

    @publisher
    @outbox.subscriber(
        _QUEUE,
        max_workers=_WORKERS,
        fetch_batch_size=BATCH,
        terminal_flush_batch_size=_DELETED_TOGETHER,
    )
    async def relay_one(body: bytes) -> bytes:
        running.handled += 1
        return body

    await broker.connect()
    try:
        # This starts it. A second start() would add a loop that fetches, and what both fetch does not fit in its queue.
        async with outbox:
            await running.commit(WARM)
            await running.wait_until_empty()
            yield running
    finally:
        await broker.stop()
        async with engine.begin() as connection:
            await connection.run_sync(metadata.drop_all)
        await engine.dispose()


def _publisher(url: str, subject: str) -> tuple[Any, Any]:
    if url.startswith("kafka://"):
        from faststream.kafka import KafkaBroker

        kafka = KafkaBroker(url.removeprefix("kafka://"), logger=None)
        return kafka, kafka.publisher(subject)
    from faststream.rabbit import RabbitBroker

    rabbitmq = RabbitBroker(url, logger=None)
    return rabbitmq, rabbitmq.publisher(subject, persist=True)


def _watching(subject: str, confirmed: asyncio.Event) -> Any:
    """A middleware that tells when a message into the subject is confirmed."""
    from faststream import BaseMiddleware

    class Watching(BaseMiddleware):
        async def publish_scope(self, call_next: Any, command: Any) -> Any:
            answer = await call_next(command)
            if command.destination == subject:  # it sees what is sent to the outbox too
                confirmed.set()
            return answer

    return Watching
