"""A process that consumes a topic of Kafka, to be killed at any time."""

import sqlalchemy as sa

from idempotent import Message, Registry, Worker
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.checkers import TransactionalSqlChecker

GROUP = "billing"
EFFECTS = sa.Table("effects", sa.MetaData(), sa.Column("id", sa.String(100)))
# How soon the group misses a member that was killed.
IMPATIENT = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300}


def consume(bootstrap: str, topic: str, database: str) -> None:
    registry = Registry()

    @registry.consumer(topic, group=GROUP, checker=TransactionalSqlChecker(database))
    def handle(message: Message, connection: sa.Connection) -> None:
        connection.execute(EFFECTS.insert().values(id=message.id))

    adapter = KafkaAdapter(bootstrap, ordering="none", commit_interval_s=0.1, consumer_config=IMPATIENT)
    Worker(registry, adapter, concurrency=2, batch_size=20, gc_interval_s=None).run()
