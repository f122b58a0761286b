"""The two consumers: one with a checker, and one that only books and acknowledges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from sqlalchemy import Connection, Engine, Table, insert

from idempotent import Message, Outcome, Registry, Result, Worker
from idempotent.adapters.base import Adapter
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import Guarantee
from idempotent.demo.bookings import bookings_table
from idempotent.demo.stores import keys_at
from idempotent.testing.stage.databases import tuned_engine

SUBJECT: Final = "flights"
GROUP: Final = "demo"


class Job(NamedTuple):
    """The first line that a consuming process reads.

    Attributes:
        checker_url: the checker's URL; None: no checker.
        database_url: the database of the bookings.
        table: the table of the bookings.
        batch_size: messages booked together.
        subject: the queue or topic.
        broker_url: the adapter's URL; None: the simulated broker.
    """

    checker_url: str | None
    database_url: str
    table: str
    batch_size: int
    subject: str = SUBJECT
    broker_url: str | None = None


def consume(job: Job, adapter: Adapter, on_result: Callable[[Message, Result], object] | None = None) -> None:
    """Consume from any adapter until it has finished, or a signal comes."""
    table = bookings_table(job.table)
    if job.checker_url is None:
        _consume_plainly(adapter, tuned_engine(job.database_url), table, job.batch_size)
        return
    checker = keys_at(job.checker_url).checker()
    registry = Registry()
    if checker.guarantee is Guarantee.TRANSACTIONAL:
        _book_in_the_checkers_transaction(registry, job.subject, checker, table)
    else:
        engine = tuned_engine(job.database_url)
        _book_in_a_transaction_of_its_own(registry, job.subject, checker, table, engine)
    Worker(registry, adapter, batch_size=job.batch_size, on_result=on_result).run()
    registry.close()


def _book_in_the_checkers_transaction(
    registry: Registry, subject: str, checker: AbstractIdempotentChecker, bookings: Table
) -> None:
    @registry.consumer(subject, group=GROUP, checker=checker, batch=True)
    def book(messages: list[Message], connection: Connection) -> None:
        connection.execute(insert(bookings), [message.json() for message in messages])


def _book_in_a_transaction_of_its_own(
    registry: Registry, subject: str, checker: AbstractIdempotentChecker, bookings: Table, engine: Engine
) -> None:
    @registry.consumer(subject, group=GROUP, checker=checker, batch=True)
    def book(messages: list[Message]) -> None:
        with engine.begin() as connection:
            connection.execute(insert(bookings), [message.json() for message in messages])


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
