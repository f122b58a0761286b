"""The same messages through a Worker and a checker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, text

from idempotent import Message, Registry, Worker
from idempotent.adapters.base import Adapter
from idempotent.checkers import AbstractIdempotentChecker, TransactionalSqlChecker
from tests.bench.brokers.course import Course

MAKE_ORDERS = "CREATE TABLE orders (id VARCHAR(64) NOT NULL, subject VARCHAR(64) NOT NULL, body BLOB)"
_INSERT_ORDERS = text("INSERT INTO orders (id, subject, body) VALUES (:id, :subject, :body)")


class Handled:
    """Counts what the handlers have seen, and stops the worker after the last one: the one thing they do."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.worker: Worker | None = None

    def count(self, messages: int) -> None:
        self.left -= messages
        if self.left <= 0:
            assert self.worker is not None
            self.worker.stop()


def consume(
    adapter: Adapter,
    checker: AbstractIdempotentChecker,
    *,
    subject: str,
    group: str,
    count: int,
    batch_size: int,
) -> Course:
    """All messages of a subject. They are counted, or written to a table in one statement a batch."""
    registry, handled, course = Registry(), Handled(count), Course()
    decorate = registry.consumer(
        subject, group=group, checker=checker, batch=isinstance(checker, TransactionalSqlChecker)
    )
    if isinstance(checker, TransactionalSqlChecker):

        def insert(messages: Sequence[Message], connection: Connection) -> None:
            rows = [{"id": one.id, "subject": one.subject, "body": one.body} for one in messages]
            connection.execute(_INSERT_ORDERS, rows)
            handled.count(len(rows))

        consumer = decorate(insert)
    else:

        def count_one(_: Message) -> None:
            handled.count(1)

        consumer = decorate(count_one)
    one: Any = consumer
    one.process, one.process_many = course.timed(consumer.process), course.timed(consumer.process_many)
    handled.worker = Worker(registry, watched(adapter, course), batch_size=batch_size, gc_interval_s=None)
    summary = handled.worker.run()
    assert summary.settled == count, f"settled {summary.settled} of {count}: {summary}"
    return course


def watched(adapter: Any, course: Course) -> Adapter:
    """The clock starts with the first delivery, and stops when everything is settled."""
    receive, close = adapter.receive, adapter.close

    def first(limit: int, timeout_s: float) -> list[Any]:
        found: list[Any] = receive(limit, timeout_s)
        if found:
            course.begin()
            adapter.receive = receive
        return found

    def last() -> None:
        if adapter.receive is receive:
            course.end()
            adapter.close = close
        close()

    adapter.receive, adapter.close = first, last
    return adapter  # type: ignore[no-any-return]
