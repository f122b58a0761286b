"""Positions in the store against positions in Kafka: nothing is skipped or waits without a line in the log.

Each partition of one topic is a case, so that one worker goes through all of them at once.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import sqlalchemy as sa
from confluent_kafka import Consumer, TopicPartition

from idempotent import Registry
from idempotent.adapters.kafka.topics import TopicIds
from idempotent.checkers import OffsetChecker
from tests.adapters.kafka.member import nothing
from tests.adapters.kafka.test_offset_checker import Shop, wait
from tests.support.stores import open_store

SENT = 6


@dataclass(frozen=True)
class Case:
    """Where the store and Kafka's group stand in a partition of six records, and from which one the worker goes on."""

    stored: int | None
    kafka: int | None
    begins: int
    says: str | None = None


CASES = [
    Case(4, 4, 4),
    Case(SENT, SENT, SENT),
    Case(0, 0, 0),
    Case(2, SENT, 2, "stored_offset_wins"),  # the database was restored, or a person moved the group
    Case(2, 4, 2, "stored_offset_wins"),
    Case(0, SENT, 0, "stored_offset_wins"),
    Case(SENT, 2, SENT, "stored_offset_wins"),  # a worker was killed before it committed
    Case(5, 2, 5, "stored_offset_wins"),
    Case(3, None, 3, "stored_offset_wins"),  # Kafka has deleted the group's offsets
    Case(SENT, None, SENT, "stored_offset_wins"),
    Case(None, 4, 4, "stored_offset_missing"),  # the database has never seen this partition
    Case(None, SENT, SENT, "stored_offset_missing"),
    Case(None, None, 0),
]


@pytest.fixture(params=["postgres", pytest.param("mysql", marks=pytest.mark.slow)])
def store(request):
    yield from open_store(request.param, request)


class Line(Shop):
    """A topic with one partition for each case."""

    def __init__(self, broker, store):
        super().__init__(broker, store, partitions=len(CASES))
        self.sent = [0] * len(CASES)
        self.due = [case.begins for case in CASES]
        """The first record of each partition that must have been booked since the worker started."""
        self.send_each(SENT)
        self.group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "billing"})
        store.opened.callback(self.group.close)
        self._place(OffsetChecker(store.engine(), table=store.table))

    def _place(self, checker):
        self.store.opened.callback(checker.close)
        consumer = Registry().consumer(self.topic, group="billing", checker=checker)(nothing)
        ids = TopicIds(self.broker.admin)
        topic_id = ids.ask({self.topic})[self.topic]
        wait(lambda: ids.upkeep() or topic_id.value, "the topic's id")
        partition = consumer.binding.requests.partition
        stored = {partition(topic_id.value, n): case.stored for n, case in enumerate(CASES)}
        checker.begin({key: offset for key, offset in stored.items() if offset is not None})
        committed = [
            TopicPartition(self.topic, n, case.kafka)
            for n, case in enumerate(CASES)
            if case.kafka is not None
        ]
        self.group.commit(offsets=committed, asynchronous=False)

    def send_each(self, count):
        for number, at in enumerate(self.sent):
            self.send(*(1000 * number + offset for offset in range(at, at + count)), partition=number)
            self.sent[number] += count

    def go_back(self, to):
        """The database fails over to a copy that lacks what came last: effects, and offsets with them."""
        effects = self.store.effects
        offsets = sa.table(f"{self.store.table}_offsets", sa.column("next_offset"))
        gone = [str(1000 * number + at) for number, sent in enumerate(self.sent) for at in range(to, sent)]
        with self.store.admin_engine.begin() as connection:
            connection.execute(sa.delete(effects).where(effects.c.id.in_(gone)))
            connection.execute(sa.update(offsets).values(next_offset=to))
        self.due = [to] * len(CASES)

    def forget(self):
        """The database fails over to a copy that has never seen these partitions."""
        with self.store.admin_engine.begin() as connection:
            connection.execute(sa.delete(sa.table(f"{self.store.table}_offsets")))

    @contextmanager
    def working(self):
        worker = self.worker(batch_size=3)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield
        finally:
            worker.stop()
            thread.join(150)
            assert not thread.is_alive()

    def await_all(self):
        """Wait until all that is due is booked, and committed to Kafka."""
        for number, sent in enumerate(self.sent):
            wanted = {1000 * number + at for at in range(self.due[number], sent)}
            wait(lambda wanted=wanted: wanted <= self.booked().keys(), f"{wanted}")
        wait(lambda: self.committed() == self.sent, "commits")
        assert set(self.booked().values()) == {1}

    def committed(self):
        asked = [TopicPartition(self.topic, number) for number in range(len(CASES))]
        return [tp.offset for tp in self.group.committed(asked, timeout=30)]


def said(caplog, event):
    """The level by (partition, offset) of all such lines."""
    records = [record for record in caplog.records if record.getMessage().startswith(f"{event} ")]
    return {(record.partition, record.offset): record.levelname for record in records}


@pytest.mark.parametrize(
    "more", [pytest.param(0, id="idle"), pytest.param(1, id="busy", marks=pytest.mark.slow)]
)
def test_a_worker_goes_on_where_the_store_is(broker, store, caplog, more):
    caplog.set_level("INFO")
    line = Line(broker, store)
    with line.working():
        line.send_each(more)
        line.await_all()
        for event in ("stored_offset_wins", "stored_offset_missing"):
            wanted = {(n, case.begins) for n, case in enumerate(CASES) if case.says == event}
            # Without an offset of the group, librdkafka may go to the beginning after it was moved: it is moved again.
            again = {
                (n, SENT + sent) for n, case in enumerate(CASES) if case.kafka is None for sent in (0, more)
            }
            assert wanted <= said(caplog, event).keys() <= wanted | again, event
        again = [name for name in line.booked() if name % 1000 < CASES[name // 1000].begins]
        assert not again, "the store has these"

        caplog.clear()
        line.go_back(to=3)
        line.send_each(more)
        line.await_all()
        moved = said(caplog, "stored_offset_wins")
        assert moved == dict.fromkeys(((n, 3) for n in range(len(CASES))), "WARNING")

        caplog.clear()
        line.forget()
        line.send_each(more)
        wait(lambda: len(said(caplog, "stored_offset_missing")) == len(CASES), "a line for each partition")
        line.await_all()
