"""The two consumers: one behind a checker, one that books and acknowledges as it comes."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, Engine, Table, insert

from idempotent import Message, Outcome, Registry, Result, Worker
from idempotent.adapters.base import Adapter
from idempotent.checker import AbstractIdempotentChecker
from idempotent.claims import Guarantee
from idempotent.demo.bookings import bookings_table
from idempotent.demo.checkers import demo_checker
from idempotent.demo.databases import demo_engine
from idempotent.demo.pipe import SUBJECT


class Job(NamedTuple):
    """What a consuming process is told at its start.

    Attributes:
        checker_url: the checker's URL; None: consume without one.
        database_url: where the bookings go.
        table: the bookings' table.
        batch_size: messages booked together.
    """

    checker_url: str | None
    database_url: str
    table: str
    batch_size: int


def consume(job: Job, adapter: Adapter) -> None:
    """Consume until the adapter has nothing left. Knows nothing of the broker behind it."""
    table = bookings_table(job.table)
    if job.checker_url is None:
        _consume_plainly(adapter, demo_engine(job.database_url), table, job.batch_size)
        return
    checker = demo_checker(job.checker_url)
    registry = Registry()
    if checker.guarantee is Guarantee.TRANSACTIONAL:
        _book_in_the_checkers_transaction(registry, checker, table)
    else:
        _book_in_a_transaction_of_its_own(registry, checker, table, demo_engine(job.database_url))
    Worker(registry, adapter, batch_size=job.batch_size).run()
    registry.close()


def _book_in_the_checkers_transaction(
    registry: Registry, checker: AbstractIdempotentChecker, bookings: Table
) -> None:
    @registry.consumer(SUBJECT, group="demo", checker=checker, batch=True)
    def book(messages: list[Message], connection: Connection) -> None:
        connection.execute(insert(bookings), [message.json() for message in messages])


def _book_in_a_transaction_of_its_own(
    registry: Registry, checker: AbstractIdempotentChecker, bookings: Table, engine: Engine
) -> None:
    @registry.consumer(SUBJECT, group="demo", checker=checker, batch=True)
    def book(messages: list[Message]) -> None:
        with engine.begin() as connection:
            connection.execute(insert(bookings), [message.json() for message in messages])


def _consume_plainly(adapter: Adapter, engine: Engine, bookings: Table, batch_size: int) -> None:
    """What everybody writes first: book, commit, acknowledge."""
    while not adapter.finished:
        deliveries = adapter.receive(batch_size, 1.0)
        if deliveries:
            with engine.begin() as connection:
                connection.execute(insert(bookings), [delivery.message.json() for delivery in deliveries])
        for delivery in deliveries:
            adapter.settle(delivery, Result(Outcome.PROCESSED))
    adapter.close()
