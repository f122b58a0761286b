"""A service over ActiveMQ: one row for each order, however often its message is delivered. Ctrl-C or SIGTERM ends it.

STOMP_URL=stomp://user:password@host:61613 python examples/activemq_service.py
"""

import os
import sys

from sqlalchemy import Connection, create_engine, text

from idempotent import Message, Registry, Worker
from idempotent.adapters.activemq import StompAdapter
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

if "STOMP_URL" not in os.environ:
    print("STOMP_URL is not set, so there is nothing to consume")
    sys.exit()
print(Worker(registry, StompAdapter(os.environ["STOMP_URL"], ack="individual"), concurrency=4).run())
