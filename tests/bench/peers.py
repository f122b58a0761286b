"""Other libraries, used as their documentation says, at their quickest: no results kept, handlers that do nothing."""

from __future__ import annotations

import asyncio
import logging
import secrets
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from redis import Redis

from idempotent import Message
from tests.bench.checkers import THREADS
from tests.bench.contest import Contender, Tick, Work, one_by_one

POWERTOOLS: Final = "Powertools"
IDEMKIT: Final = "idemkit"


def redis(url: str) -> list[Contender]:
    """AWS Powertools' idempotency and idemkit, each with Redis."""
    return [
        *(Contender("Redis", POWERTOOLS, lambda: _powertools(url), threads=threads) for threads in THREADS),
        # Its own loop serves one thread; concurrency in it is asyncio's.
        Contender("Redis", IDEMKIT, lambda: _idemkit_on_redis(url)),
    ]


def postgres(url: str) -> list[Contender]:
    """idemkit with PostgreSQL."""
    return [Contender("PostgreSQL", IDEMKIT, lambda: _idemkit_on_postgres(url))]


@contextmanager
def _powertools(url: str) -> Iterator[Work]:
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
    from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer

    client = Redis.from_url(url, decode_responses=True)
    prefix = secrets.token_hex(4)

    @idempotent_function(  # type: ignore[untyped-decorator]
        data_keyword_argument="message_id",
        persistence_store=RedisCachePersistenceLayer(client=client),
        config=IdempotencyConfig(),
    )
    def process(*, message_id: str) -> None:
        del message_id

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield one_by_one(lambda message: process(message_id=f"{prefix}:{message.id!s}"))
    finally:
        client.close()


@contextmanager
def _idemkit_on_redis(url: str) -> Iterator[Work]:
    from idemkit import RedisBackend

    with asyncio.Runner() as runner:
        backend = RedisBackend.from_url(url, namespace=secrets.token_hex(4))
        try:
            yield _dispatching(runner, backend)
        finally:
            runner.run(backend.aclose())


@contextmanager
def _idemkit_on_postgres(url: str) -> Iterator[Work]:
    from idemkit import PostgresBackend
    from idemkit.backends.postgres import init_pg

    plain, table = url.replace("+psycopg", ""), f"idemkit_{secrets.token_hex(4)}"
    with asyncio.Runner() as runner:
        runner.run(init_pg(plain, table=table))
        backend = PostgresBackend.from_url(plain, table=table)
        try:
            yield _dispatching(runner, backend)
        finally:
            runner.run(backend.aclose())


def _dispatching(runner: asyncio.Runner, backend: Any) -> Work:
    from idemkit import ConsumerAction, IdempotentConsumer, QueueConfig

    # Once for each consumer made, that it counts attempts in the process: it is made anew in each round.
    logging.getLogger("idemkit").setLevel(logging.ERROR)
    config = QueueConfig(dedup_id=lambda message: message.id, visibility_timeout_seconds=30)
    consumer = IdempotentConsumer(backend=backend, config=config)

    @consumer.handle
    async def process(_: object) -> None:
        pass

    async def dispatch(messages: Sequence[Message], tick: Tick) -> None:
        for message in messages:
            result = await consumer.dispatch(message)
            if result.action is not ConsumerAction.ACK:
                raise RuntimeError(f"idemkit did not process {message.id!s}: {result}")
            tick()

    return lambda messages, tick: runner.run(dispatch(messages, tick))
