"""A worker over RabbitMQ, to be killed: `python -m tests.adapters.rabbitmq.child URL QUEUE DATABASE ACK`.

IDEMPOTENT_CRASH_AT says where it dies: around the effect, the commit, the settlement.
"""

import sys

from sqlalchemy import text
from sqlalchemy.orm import Session

from idempotent import Message, Registry, Worker
from idempotent.adapters.rabbitmq import RabbitMqAdapter
from idempotent.checkers import TransactionalSqlChecker
from idempotent.policy import Backoff
from idempotent.testing.crashpoints import AckPoints, around, crash_points
from tests.adapters.rabbitmq.rabbit import SOON


def registry_over(queue, database, poison="poison"):
    """A consumer that writes a row for each message, and cannot stand one of them."""
    registry = Registry()
    registry.checker("db", crash_points(TransactionalSqlChecker(database)))

    def write(session, id):
        session.execute(text("INSERT INTO effects (id) VALUES (:id)"), {"id": id})

    write = around(write, "effect")

    @registry.consumer(
        queue, group="child", checker="db", max_attempts=2, backoff=Backoff(initial_s=0.1, maximum_s=0.1)
    )
    def handle(message: Message, session: Session) -> None:
        if message.id == poison:
            raise ValueError(poison)
        write(session, message.id)

    return registry


def main(url, queue, database, ack):
    adapter = RabbitMqAdapter(url, ack=ack, prefetch=50, backoff=SOON)
    registry = registry_over(queue, database)
    registry.observers.add(AckPoints())
    Worker(registry, adapter, concurrency=2, gc_interval_s=None).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
