"""The two consumers: one with a checker, and one that only books and acknowledges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from sqlalchemy import Connection, Engine, Table, insert

from examples.demo.stage.databases import tuned_engine
from examples.demo.stores import bookings_table, keys_at
from idempotent import Message, Outcome, Registry, Result, Worker
from idempotent.adapters.base import Adapter
from idempotent.claims import Guarantee

SUBJECT: Final = "flights"
GROUP: Final = "demo"


class Job(NamedTuple):
    """The first line that a consuming process reads. No checker: it only books; no broker: one is simulated."""

    checker_url: str | None
    database_url: str
    table: str
    batch_size: int
    subject: str = SUBJECT
    broker_url: str | None = None


def consume(job: Job, adapter: Adapter, on_result: Callable[[Message, Result], object] | None = None) -> None:
    """Consume from any adapter until it has finished, or a signal comes."""
    table, engine = bookings_table(job.table), tuned_engine(job.database_url)
    if job.checker_url is None:
        _consume_plainly(adapter, engine, table, job.batch_size)
        return
    checker = keys_at(job.checker_url).checker()
    registry = Registry()
    register = registry.consumer(job.subject, group=GROUP, checker=checker, batch=True)

    def book(messages: list[Message], connection: Connection) -> None:
        connection.execute(insert(table), [message.json() for message in messages])

    def book_alone(messages: list[Message]) -> None:
        with engine.begin() as connection:
            book(messages, connection)

    register(book if checker.guarantee is Guarantee.TRANSACTIONAL else book_alone)
    Worker(registry, adapter, batch_size=job.batch_size, on_result=on_result).run()
    registry.close()


def _consume_plainly(adapter: Adapter, engine: Engine, bookings: Table, batch_size: int) -> None:
    """The usual first version: book, commit, acknowledge."""
    while not adapter.finished:
        deliveries = adapter.receive(batch_size, 1.0)
        if deliveries:
            with engine.begin() as connection:
                connection.execute(insert(bookings), [delivery.message.json() for delivery in deliveries])
        for delivery in deliveries:
            adapter.settle(delivery, Result(Outcome.PROCESSED))
    adapter.close()
