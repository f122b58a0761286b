"""Handlers whose transactions the database undoes run again, and the log says so: once a minute for each consumer."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from idempotent import Message, Outcome, Registry
from tests.checkers.sql.booking import messages
from tests.support.logs import logged
from tests.support.stores import open_store

WORDS = {"mysql": "Deadlock found", "postgres": "deadlock detected"}


@pytest.fixture(params=WORDS)
def store(request):
    yield from open_store(request.param, request)


class Crossing:
    """Two handlers that lock the two rows in opposite order, and wait for each other in between.

    The one whose transaction the database undoes runs again without waiting.
    """

    def __init__(self, pairs):
        self._pairs = pairs
        self._both, self._met = threading.Barrier(2, timeout=20), threading.Event()

    def _lock(self, name):
        return self._pairs.select().where(self._pairs.c.id == name).with_for_update()

    def _orders(self, message):
        first, second = ("a", "b") if message.id.startswith("1") else ("b", "a")
        return self._lock(first), self._lock(second)

    def _meet(self):
        if not self._met.is_set():
            with suppress(threading.BrokenBarrierError):
                self._both.wait()
            self._met.set()

    def plain(self, message: Message, session: Session) -> None:
        if message.id.endswith("quiet"):
            return
        first, second = self._orders(message)
        session.execute(first)
        self._meet()
        session.execute(second)

    def swallowing(self, message: Message, session: Session) -> None:
        with suppress(DBAPIError):
            self.plain(message, session)

    def wrapping(self, message: Message, session: Session) -> None:
        try:
            self.plain(message, session)
        except DBAPIError as error:
            raise ValueError("no") from error

    def batch(self, group: list[Message], session: Session) -> None:
        for message in group:
            self.plain(message, session)

    async def awaiting(self, message: Message, session: AsyncSession) -> None:
        first, second = self._orders(message)
        await session.execute(first)
        await asyncio.to_thread(self._meet)
        await session.execute(second)


def together(consumer, *groups):
    """The results of groups that are processed at the same time."""
    results = []

    def process(group):
        results.extend(consumer.process_many(group) if len(group) > 1 else [consumer.process(group[0])])

    threads = [threading.Thread(target=process, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def told(caplog):
    return logged(caplog, "transaction_undone")


def check(record, store, consumer, *keys):
    assert record.levelno == logging.WARNING
    assert record.consumer == consumer.name
    assert record.more == 0
    assert WORDS[store.kind] in record.error
    assert [key.rpartition(":")[2] for key in record.keys] in [list(one) for one in keys]


@pytest.mark.parametrize("how", ["plain", "swallowing", "wrapping"])
def test_a_deadlock_of_handlers_is_told(store, pairs, caplog, how):
    crossing = Crossing(pairs)
    consumer = Registry().consumer("orders", checker=store.transactional())(getattr(crossing, how))
    results = together(consumer, messages("1"), messages("2"))
    assert [result.outcome for result in results] == [Outcome.PROCESSED] * 2
    (record,) = told(caplog)
    check(record, store, consumer, ["1"], ["2"])


@pytest.mark.parametrize("savepoints", [False, True])
def test_a_deadlock_in_a_group_names_the_message_whose_handler_met_it(store, pairs, caplog, savepoints):
    crossing = Crossing(pairs)
    consumer = Registry().consumer("orders", checker=store.transactional(savepoints=savepoints))(
        crossing.plain
    )
    groups = messages("1", "1-quiet"), messages("2", "2-quiet")
    results = together(consumer, *groups)
    assert [result.outcome for result in results] == [Outcome.PROCESSED] * 4
    (record,) = told(caplog)
    check(record, store, consumer, ["1"], ["2"])


def test_a_deadlock_of_a_handler_of_batches_names_its_messages(store, pairs, caplog):
    crossing = Crossing(pairs)
    consumer = Registry().consumer("orders", checker=store.transactional(), batch=True)(crossing.batch)
    results = together(consumer, messages("1", "1-quiet"), messages("2", "2-quiet"))
    assert [result.outcome for result in results] == [Outcome.PROCESSED] * 4
    (record,) = told(caplog)
    check(record, store, consumer, ["1", "1-quiet"], ["2", "2-quiet"])


def test_a_deadlock_of_async_handlers_is_told(store, pairs, caplog):
    crossing = Crossing(pairs)
    consumer = Registry().consumer("orders", checker=store.transactional(store.async_engine()))(
        crossing.awaiting
    )

    async def main():
        return await asyncio.gather(*(consumer.process(message) for message in messages("1", "2")))

    assert [result.outcome for result in asyncio.run(main())] == [Outcome.PROCESSED] * 2
    (record,) = told(caplog)
    check(record, store, consumer, ["1"], ["2"])


def test_later_deadlocks_of_the_same_minute_are_counted_in_the_next_line(store, caplog):
    checker, left = store.transactional(), 3
    error = {
        "mysql": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'",
        "postgres": "DO $$ BEGIN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END $$",
    }[store.kind]

    @Registry().consumer("orders", checker=checker)
    def consumer(message, session: Session):
        nonlocal left
        left -= 1
        if left:
            session.execute(sa.text(error))

    assert consumer.process(messages("1")[0]).outcome is Outcome.PROCESSED
    assert len(told(caplog)) == 1
    assert consumer.binding.undone_transactions.take() is None


def test_what_handlers_raise_is_not_told_as_the_database_s(store, caplog):
    @Registry().consumer("orders", checker=store.transactional())
    def consumer(message, session: Session):
        with suppress(DBAPIError), session.begin_nested():
            session.execute(sa.text("SELECT nothing"))
        raise ValueError("no")

    assert {result.outcome for result in consumer.process_many(messages("1", "2", "3"))} == {Outcome.FAILED}
    assert told(caplog) == []
