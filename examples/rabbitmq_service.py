"""A service over RabbitMQ: one row for each payment, however often its message is delivered. Ctrl-C or SIGTERM ends it.

RABBITMQ_URL=amqp://user:password@host python examples/rabbitmq_service.py
"""

import os
import sys

from sqlalchemy import Connection, create_engine, text

from idempotent import Message, Registry, Worker
from idempotent.adapters.rabbitmq import RabbitMqAdapter
from idempotent.checkers import TransactionalSqlChecker
from idempotent.migrations import upgrade

DATABASE = "sqlite:///payments.db"
registry = Registry()
registry.checker("db", TransactionalSqlChecker(DATABASE))


@registry.consumer("payments", group="ledger", checker="db", max_attempts=5)
def book(message: Message, connection: Connection) -> None:
    # The row and the key of the message are committed together.
    payment = message.json()
    connection.execute(text("INSERT INTO payments VALUES (:account, :cents)"), payment)
    print(f"booked {payment['cents']} cents for {payment['account']}", flush=True)


upgrade(DATABASE)
with create_engine(DATABASE).begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS payments (account TEXT, cents INTEGER)"))

if "RABBITMQ_URL" not in os.environ:
    print("RABBITMQ_URL is not set, so there is nothing to consume")
    sys.exit()
print(Worker(registry, RabbitMqAdapter(os.environ["RABBITMQ_URL"], ack="batched"), concurrency=4).run())
