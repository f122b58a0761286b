"""A service over Kafka: one row for each order, however often its message is delivered. Ctrl-C or SIGTERM ends it.

KAFKA_BOOTSTRAP=host:9092 python examples/kafka_service.py
"""

import os
import sys

from sqlalchemy import Connection, create_engine, text

from idempotent import Message, Registry, Worker
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.checkers import TransactionalSqlChecker
from idempotent.migrations import upgrade

DATABASE = "sqlite:///orders.db"
registry = Registry()


@registry.consumer("orders.paid", group="shipping", checker=TransactionalSqlChecker(DATABASE), max_attempts=5)
def ship(message: Message, connection: Connection) -> None:
    # The row and the key of the message are committed together.
    order = message.json()["order"]
    connection.execute(text("INSERT INTO parcels VALUES (:order)"), {"order": order})
    print(f"shipped order {order}", flush=True)


upgrade(DATABASE)
with create_engine(DATABASE).begin() as connection:
    connection.execute(text('CREATE TABLE IF NOT EXISTS parcels ("order" TEXT)'))

if "KAFKA_BOOTSTRAP" not in os.environ:
    print("KAFKA_BOOTSTRAP is not set, so there is nothing to consume")
    sys.exit()
# The Kafka key is the customer: orders of one customer stay in order, other orders do not wait.
print(Worker(registry, KafkaAdapter(os.environ["KAFKA_BOOTSTRAP"], ordering="key"), concurrency=4).run())
