"""The three programs: `python -m examples.demo.services.programs`, told its job on standard input.

The job's subject says which: the service of the orders, billing, or the relay between them. Standard input and output
are the way to the simulated broker.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import insert
from sqlalchemy.orm import Session

from examples.demo.broker import PipeAdapter
from examples.demo.consumers import Job
from examples.demo.stage.children import told_by_parent
from examples.demo.stage.databases import tuned_engine
from examples.demo.stores import KEYS, bookings_table, keys_at
from idempotent import Message, Registry, Result, Worker
from idempotent.adapters.base import Adapter
from idempotent.outbox import Outbox, Relay

ORDERS: Final = "orders"
INVOICES: Final = "invoices"
RELAY: Final = "relay"
# How long the messages of a relay that was killed wait for the next one.
_RELAY_LEASE_S: Final = 1.0


class PipePublisher(PipeAdapter):
    """Sends messages to the broker at the other end of the pipes, which confirms each batch."""

    def publish(self, message: Message) -> None:
        self.publish_many([message])

    def publish_many(self, messages: Sequence[Message]) -> None:
        self._report([(str(message.id), (message.body or b"").decode()) for message in messages])
        if not self._source.readline().endswith("\n"):
            sys.exit("the broker is gone")

    def receive(self, limit: int, timeout_s: float) -> list[Any]:
        """Return nothing: the pipes need no upkeep."""
        del limit, timeout_s
        return []

    def close(self) -> None:
        """Nothing to do: what was published is confirmed."""


def main() -> None:
    """Read the job, and do it."""
    told, report = told_by_parent()
    job = Job(*told)
    if job.subject == RELAY:
        relay(job, PipePublisher(sys.stdin, report))
    else:
        serve(job, PipeAdapter(sys.stdin, report, job.subject), INVOICES if job.subject == ORDERS else None)


def serve(
    job: Job,
    adapter: Adapter,
    sends_to: str | None,
    on_result: Callable[[Message, Result], object] | None = None,
) -> None:
    """Book what arrives, in one transaction with the key, and of an order also send its invoice.

    Args:
        job: what to consume, and where to book it.
        adapter: of the broker.
        sends_to: where the invoices go; None: it makes invoices itself.
        on_result: called with each message and its result.
    """
    assert job.checker_url is not None
    table, outbox = bookings_table(job.table), outbox_at(job.database_url)

    def book(messages: list[Message], session: Session) -> None:
        session.execute(insert(table), [message.json() for message in messages])
        if sends_to is not None:
            for message in messages:
                outbox.send(session, Message(sends_to, message.body))

    checker = keys_at(job.checker_url).checker()
    registry = Registry()
    registry.consumer(job.subject, group="demo", checker=checker, batch=True)(book)
    Worker(registry, adapter, batch_size=job.batch_size, on_result=on_result).run()
    registry.close()


def relay(job: Job, publisher: Adapter) -> None:
    """Publish what committed orders have sent, until killed."""
    Relay(outbox_at(job.database_url), publisher, batch_size=job.batch_size, lease_s=_RELAY_LEASE_S).run()


def outbox_at(database_url: str) -> Outbox:
    """The outbox of the orders."""
    return Outbox(tuned_engine(database_url), table=KEYS)


if __name__ == "__main__":
    main()
