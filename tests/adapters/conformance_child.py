"""A process that consumes from any broker, to be killed at any time or at a named step."""

import os
import random
import signal
import time

import sqlalchemy as sa

from idempotent import Message, Registry, Worker
from idempotent.adapters import adapter_from_url
from idempotent.adapters.base import Adapter
from idempotent.checkers import TransactionalSqlChecker
from idempotent.policy import Backoff
from idempotent.testing.crashpoints import AckPoints, around, crash_points

GROUP = "billing"
EFFECTS = sa.Table("effects", sa.MetaData(), sa.Column("id", sa.String(100)))
SOON = Backoff(initial_s=0.05, maximum_s=0.5)
_BATCHED = {"amqp": "batched", "stomp": "dups_ok"}
# How soon a group misses a member that was killed.
_IMPATIENT = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300}


def adapter_at(url: str, *, batched: bool) -> Adapter:
    """In no order, missed soon when it is killed, with acknowledgements in batches or one by one."""
    scheme, _, place = url.partition("://")
    if scheme == "kafka":
        from idempotent.adapters.kafka import KafkaAdapter

        return KafkaAdapter(place, ordering="none", commit_interval_s=0.1, consumer_config=_IMPATIENT)
    return adapter_from_url(url, backoff=SOON, **({"ack": _BATCHED[scheme]} if batched else {}))


def consume(url: str, subject: str, database: str, max_attempts: int, batch_size: int) -> None:
    registry = Registry()
    checker = crash_points(TransactionalSqlChecker(database))

    def write(connection: sa.Connection, id: object) -> None:
        connection.execute(EFFECTS.insert().values(id=id))

    write = around(write, "effect")

    @registry.consumer(subject, group=GROUP, checker=checker, max_attempts=max_attempts, backoff=SOON)
    def handle(message: Message, connection: sa.Connection) -> None:
        if message.body == b"poison":
            raise ValueError("poison")
        if message.body == b"deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        if random.random() < 0.1:
            time.sleep(0.002)
        write(connection, message.id)

    adapter = adapter_at(url, batched=batch_size > 1)
    registry.observers.add(AckPoints())
    Worker(registry, adapter, concurrency=2, batch_size=batch_size, gc_interval_s=None).run()
