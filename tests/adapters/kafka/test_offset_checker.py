"""Kafka with offsets in the business transaction: the store decides where to read on."""

from __future__ import annotations

import secrets
import shlex
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from idempotent import Message, Registry, Worker
from idempotent.adapters.copies import FOR_HEADER, ONLY_HEADER
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.checkers import OffsetChecker
from idempotent.cli.root import app
from idempotent.errors import AdapterError, ConfigurationError, StoreUnavailableError
from idempotent.policy import Backoff
from tests.adapters.kafka.through_proxy import garbled
from tests.support.stores import open_store

WAIT_S = 60


@pytest.fixture(params=["mysql", "postgres"])
def store(request):
    yield from open_store(request.param, request)


class Shop:
    """A topic whose messages are booked, and workers over it."""

    def __init__(self, broker, store, partitions=1, kind=OffsetChecker):
        self.broker, self.store, self.kind = broker, store, kind
        self.topic = f"orders-{secrets.token_hex(6)}"
        broker.make(self.topic, partitions)
        broker.make(f"{self.topic}.dlq")
        self.bad: set[bytes] = set()

    def send(self, *numbers, partition=0):
        for number in numbers:
            self.broker.send(self.topic, str(number).encode(), partition=partition)
        self.broker.flush()

    def worker(self, *, batch_size=1, bootstrap=None, **options):
        checker = self.kind(self.store.engine(), table=self.store.table)
        self.store.opened.callback(checker.close)
        registry = Registry()

        @registry.consumer(
            self.topic, group="billing", checker=checker, max_attempts=2, backoff=Backoff(0.05, 0.1)
        )
        def book(message: Message, session: Session) -> None:
            session.execute(self.store.effects.insert().values(id=message.body.decode()))
            if message.body in self.bad:
                raise ValueError("no such customer")

        bootstrap = bootstrap or self.broker.bootstrap
        adapter = KafkaAdapter(bootstrap, max_in_flight_per_partition=batch_size, **options)
        return Worker(registry, adapter, batch_size=batch_size, gc_interval_s=None)

    def run_until(self, booked, **options):
        worker = self.worker(**options)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            wait(lambda: len(self.store.booked()) >= booked, f"{booked} bookings")
            time.sleep(0.3)
        finally:
            worker.stop()
            thread.join(150)
            assert not thread.is_alive()

    def booked(self):
        return {int(name): count for name, count in self.store.booked().items()}


def wait(look, what):
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if look():
            return
        time.sleep(0.05)
    raise AssertionError(what)


def once(*numbers):
    return dict.fromkeys(numbers, 1)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 20])
def test_it_reads_on_where_the_store_says_whatever_kafka_has_committed(broker, store, batch_size):
    shop = Shop(broker, store)
    shop.send(*range(30))
    shop.run_until(30, batch_size=batch_size)
    assert shop.booked() == once(*range(30))
    for offset in (0, 17, 30):  # an operator has reset the group, back and forth
        broker.commit("billing", shop.topic, offset)
        shop.send(100 + offset)
        shop.run_until(len(shop.booked()) + 1, batch_size=batch_size)
    assert shop.booked() == once(*range(30), 100, 117, 130)


def test_a_group_that_kafka_takes_too_far_comes_back_for_what_is_missing(broker, store):
    shop = Shop(broker, store)
    shop.send(*range(10))
    shop.run_until(10)
    shop.send(*range(10, 20))
    broker.commit("billing", shop.topic, 20)
    shop.send(20)
    shop.run_until(21)
    assert shop.booked() == once(*range(21))


@pytest.mark.parametrize("committed", [None, 3, 12])
def test_after_an_orderly_end_the_groups_offset_is_the_stored_one(broker, store, committed):
    shop = Shop(broker, store)
    shop.send(*range(10))
    shop.run_until(10)
    assert broker.committed("billing", shop.topic) == 10
    shop.send(*range(10, 12))
    if committed is not None:  # a worker was killed before its commit, or an operator has reset the group
        broker.commit("billing", shop.topic, committed)
        shop.send(12)
    shop.run_until(12)
    assert broker.committed("billing", shop.topic) == len(shop.booked())


@pytest.mark.parametrize("batch_size", [1, 20])
def test_it_is_so_when_the_worker_ends_amid_its_messages(broker, store, batch_size):
    shop = Shop(broker, store, partitions=2)
    for number in (0, 1):
        shop.send(*range(1000 * number, 1000 * number + 400), partition=number)
    shop.run_until(50, batch_size=batch_size)
    booked = shop.booked()
    for number in (0, 1):
        mine = [name for name in booked if name // 1000 == number]
        assert (broker.committed("billing", shop.topic, number) or 0) == len(mine)


@pytest.mark.parametrize("batch_size", [1, 20])
def test_it_is_so_when_nothing_came_after_what_was_stored(broker, store, batch_size):
    shop = Shop(broker, store)
    shop.send(*range(10))
    shop.run_until(10)
    broker.commit("billing", shop.topic, 4)
    worker = shop.worker(batch_size=batch_size)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(worker.run)
        try:
            wait(lambda: broker.committed("billing", shop.topic) == 10, "the stored offset")
        finally:
            worker.stop()
            running.result(60)
    kept = broker.last_commit("billing", shop.topic)
    assert (kept.offset, kept.leader_epoch) == (10, 0)


def test_a_dead_letter_moves_on_and_holds_back_nobody_for_ever(broker, store):
    shop = Shop(broker, store)
    shop.bad = {b"1"}
    shop.send(*range(4))
    shop.run_until(3)
    assert shop.booked() == once(0, 2, 3)
    (letter,) = broker.read(f"{shop.topic}.dlq")
    assert letter.body == b"1"
    shop.send(4)
    shop.run_until(4)
    assert shop.booked() == once(0, 2, 3, 4)


@pytest.mark.parametrize("batch_size", [1, 20])
def test_a_record_that_cannot_be_decoded_moves_on_in_its_turn(broker, store, batch_size):
    shop = Shop(broker, store)
    for number in range(6):
        headers = [("colour", b"red")] if number in (0, 3) else []
        broker.produce(shop.topic, b"%d" % number, None, headers)
    with garbled(broker) as bootstrap:
        shop.run_until(4, batch_size=batch_size, bootstrap=bootstrap)
    assert shop.booked() == once(1, 2, 4, 5)
    assert [letter.value() for letter in broker.read_raw(f"{shop.topic}.dlq")] == [b"0", b"3"]
    shop.send(6)
    shop.run_until(5, batch_size=batch_size)
    assert shop.booked() == once(1, 2, 4, 5, 6)


@pytest.mark.parametrize("batch_size", [1, 20])
def test_a_copy_for_another_group_moves_on_in_its_turn(broker, store, caplog, batch_size):
    shop = Shop(broker, store)
    for number in range(6):
        others = [] if number in (0, 3) else [(FOR_HEADER, shop.topic.encode()), (ONLY_HEADER, b"mail")]
        broker.produce(shop.topic, b"%d" % number, None, others)
    shop.run_until(2, batch_size=batch_size)
    assert shop.booked() == once(0, 3)
    shop.send(6)
    shop.run_until(3, batch_size=batch_size)
    assert shop.booked() == once(0, 3, 6)
    assert broker.committed("billing", shop.topic) == 7
    assert not [record for record in caplog.records if "stored_offset_wins" in record.getMessage()]


@pytest.mark.parametrize("how", ["policy", "command"])
def test_records_that_were_removed_stop_it_whatever_kafka_has_committed(broker, store, how):
    shop = Shop(broker, store)
    shop.send(*range(3))
    shop.run_until(3)
    shop.send(*range(3, 8))
    broker.remove(shop.topic, before=5)
    broker.commit("billing", shop.topic, 6)
    with pytest.raises(AdapterError, match=f"records 3 to 4 of {shop.topic}/0 were removed") as stopped:
        shop.worker().run()
    if how == "policy":
        shop.run_until(6, consumer_config={"auto.offset.reset": "earliest"})
    else:
        command = str(stopped.value).partition("Type: idempotent ")[2].replace("URL", store.url)
        words = [*shlex.split(command), "--table", store.table, "--yes"]
        assert CliRunner().invoke(app, words).exit_code == 0
        shop.run_until(6)
    assert shop.booked() == once(0, 1, 2, 5, 6, 7)


def test_two_workers_share_partitions_that_come_and_go(broker, store):
    shop = Shop(broker, store, partitions=3)
    for number in range(150):
        shop.send(number, partition=number % 3)
    first, second = shop.worker(batch_size=5), shop.worker(batch_size=5)
    threads = [threading.Thread(target=worker.run) for worker in (first, second)]
    threads[0].start()
    wait(lambda: len(shop.store.booked()) > 20, "the first begins")
    threads[1].start()
    wait(lambda: len(shop.store.booked()) > 90, "both work")
    first.stop()
    wait(lambda: len(shop.store.booked()) >= 150, "the second ends it")
    second.stop()
    for thread in threads:
        thread.join(150)
    assert shop.booked() == once(*range(150))


def test_a_store_that_is_down_at_the_assignment_is_waited_for(broker, store):
    calls = []

    class DownAtFirst(OffsetChecker):
        def begin(self, starts):
            calls.append(starts)
            if len(calls) < 3:
                raise StoreUnavailableError("down")
            return super().begin(starts)

    shop = Shop(broker, store, kind=DownAtFirst)
    shop.send(1)
    shop.run_until(1)
    assert len(calls) >= 3
    assert shop.booked() == once(1)


@pytest.mark.parametrize(
    "options", [{"ordering": "key"}, {"ordering": "none"}, {"semantics": "at_most_once"}]
)
def test_it_needs_the_order_of_the_partition(broker, store, options):
    with pytest.raises(ConfigurationError, match="order of a partition"):
        Shop(broker, store).worker(**options).run()
