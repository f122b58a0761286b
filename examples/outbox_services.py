"""Two services: orders books an order and sends its invoice in one transaction, and billing gets each invoice once.

BROKER_URL=amqp://user:password@host python examples/outbox_services.py orders
BROKER_URL=amqp://user:password@host python examples/outbox_services.py billing

With Kafka BROKER_URL=kafka://host:9092?ordering=key, and the topics shop.orders, shop.invoices and theirs with .dlq
exist; with ActiveMQ BROKER_URL=stomp://user:password@host:61613. Ctrl-C or SIGTERM ends a service.
"""

import os
import sys

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from idempotent import Message, Registry, Worker
from idempotent.adapters import adapter_from_url
from idempotent.checkers import TransactionalSqlChecker
from idempotent.migrations import upgrade
from idempotent.outbox import Outbox, Relay

if len(sys.argv) != 2 or "BROKER_URL" not in os.environ:
    print("BROKER_URL and the name of a service are not given, so there is nothing to do")
    sys.exit()
broker, service = os.environ["BROKER_URL"], sys.argv[1]
engine = create_engine(f"sqlite:///{service}.db")  # each service has a database of its own
upgrade(engine)
with engine.begin() as connection:
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS {service} (id TEXT)"))
registry = Registry()
checker = TransactionalSqlChecker(engine)
outbox = Outbox(engine)


def book(message: Message, session: Session) -> None:
    order = message.json()
    session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": order["id"]})
    # Committed with the row above. The invoices of one customer are published in their order.
    outbox.send(session, Message("shop.invoices", message.body), order_key=order["customer"])


def charge(message: Message, session: Session) -> None:
    order = message.json()
    session.execute(text("INSERT INTO billing VALUES (:id)"), {"id": order["id"]})
    print(f"charged {order['customer']} for {order['id']}", flush=True)


if service == "orders":
    registry.consumer("shop.orders", group="orders", checker=checker)(book)
    # An adapter of its own, which only publishes. On RabbitMQ it makes no queue: a mistyped subject is held.
    only_publishes = {"declare": False} if broker.startswith("amqp") else {}
    relay = Relay(outbox, adapter_from_url(broker, **only_publishes))
    worker = Worker(registry, adapter_from_url(broker), services=[relay])
else:
    registry.consumer("shop.invoices", group="billing", checker=checker)(charge)
    worker = Worker(registry, adapter_from_url(broker))
print(worker.run())
