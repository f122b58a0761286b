"""The programs of `test_chain`: `orders`, `billing` and `relay`, each a process."""

import logging
import sys

import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message, Registry, Worker
from idempotent.adapters import adapter_from_url
from idempotent.checkers import TransactionalSqlChecker
from idempotent.outbox import Outbox, Relay
from idempotent.worker.signals import on_stop_signal
from tests.support.tables import effects_table


def main(role, url, table, broker, orders, invoices):
    logging.basicConfig(level=logging.INFO)
    engine = sa.create_engine(url)
    outbox = Outbox(engine, table=table)
    if role == "relay":
        relay = Relay(outbox, adapter_from_url(broker), lease_s=3.0)
        with on_stop_signal(relay.stop):
            relay.run()
        return
    registry = Registry()
    subject, kind = (orders, "booked") if role == "orders" else (invoices, "invoiced")
    effects = effects_table(sa.MetaData(), table)

    def handle(message: Message, session: Session) -> None:
        session.execute(effects.insert().values(id=f"{kind} {message.body.decode()}"))
        if role == "orders":
            outbox.send(session, Message(invoices, message.body), order_key=message.body.decode()[-1])

    checker = TransactionalSqlChecker(engine, table=table)
    registry.consumer(subject, group=role, checker=checker, max_attempts=1000)(handle)
    Worker(registry, adapter_from_url(broker), concurrency=2, drain_timeout_s=5.0, gc_interval_s=None).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
