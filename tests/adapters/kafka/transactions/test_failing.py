"""Transactions that fail, hang, or lose their broker."""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka import KafkaError, KafkaException

from idempotent.adapters.copies import KEY_HEADER
from idempotent.adapters.kafka.transactions import open_transaction
from idempotent.adapters.kafka.transactions.transactions import Transactions
from idempotent.testing.adapter_contract import DEADLINE_S, until
from tests.adapters.kafka.broker import Broker
from tests.adapters.kafka.line import Line
from tests.adapters.kafka.member import IMPATIENT, receive
from tests.adapters.kafka.test_contract import lose_partitions
from tests.support.services import PrivateKafka

# Errors

# The broker ends a transaction that hangs after this time, and the client waits for that. Not too short for a busy
# machine: a transaction that is aborted too early is repeated.
TIMES_OUT = {"transaction.timeout.ms": 3000}


class Unreliable:
    """A producer's client of which one call goes wrong, before or after it has happened: once, or for good."""

    def __init__(self, client, step, error, *, happens, for_good=False):
        self._client, self._step, self._error, self._happens = client, step, error, happens
        self._for_good, self.is_spent = for_good, False

    def __getattr__(self, name):
        if name != self._step or (self.is_spent and not self._for_good):
            return getattr(self._client, name)

        def call(*arguments):
            is_first, self.is_spent = not self.is_spent, True
            if self._happens and is_first:
                # To its end, however short the adapter's patience is.
                getattr(self._client, name)(*((30.0,) if name == "commit_transaction" else arguments))
            raise KafkaException(self._error)

        return call


ERRORS = {
    "again": KafkaError(KafkaError._TIMED_OUT, "simulated", retriable=True),
    "abort": KafkaError(KafkaError.TRANSACTION_COORDINATOR_FENCED, "simulated", txn_requires_abort=True),
    "fatal": KafkaError(KafkaError._FENCED, "simulated", fatal=True),
    "unexpected": KafkaError(KafkaError._STATE, "simulated"),
}


@pytest.mark.parametrize("happens", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("step", ["begin_transaction", "send_offsets_to_transaction", "commit_transaction"])
def test_whatever_goes_wrong_with_a_transaction_nothing_is_lost_or_doubled(broker, step, kind, happens):
    if (step, kind, happens) == ("commit_transaction", "abort", True):
        pytest.skip("a transaction that is committed needs no abort")
    line = Line(broker)
    line.send(5)
    with line.opened(producer_config=TIMES_OUT) as adapter:
        producer = adapter._group._commits._producer
        until(lambda: adapter.receive(0, 0.05) == [] and producer._is_ready, "a producer")
        unreliable = producer.client = Unreliable(producer.client, step, ERRORS[kind], happens=happens)
        for _ in range(5):
            line.settle(adapter, *receive(adapter))
        until(lambda: adapter.receive(1, 0.1) == [] and line.committed() == 5, "all offsets")
        assert unreliable.is_spent
    assert line.arrived() == [0, 1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "happens"),
    [
        ("send_offsets_to_transaction", False),
        ("commit_transaction", False),
        ("commit_transaction", True),
        ("abort_transaction", False),
    ],
)
def test_a_client_that_never_comes_to_an_end_is_replaced(broker, monkeypatch, step, happens):
    monkeypatch.setattr(open_transaction, "_PATIENCE_S", 1.0)
    line = Line(broker)
    line.send(5)
    with line.opened(producer_config=TIMES_OUT) as adapter:
        commits = adapter._group._commits
        until(lambda: adapter.receive(0, 0.05) == [] and commits._producer._is_ready, "a producer")
        client = commits._producer.client
        if step == "abort_transaction":  # without a reason there is no abort
            client = Unreliable(client, "commit_transaction", ERRORS["abort"], happens=False)
        stuck = commits._producer.client = Unreliable(
            client, step, ERRORS["again"], happens=happens, for_good=True
        )
        for _ in range(5):
            line.settle(adapter, *receive(adapter))
        until(lambda: adapter.receive(1, 0.1) == [] and line.committed() == 5, "all offsets")
        assert stuck.is_spent
        until(lambda: adapter.receive(1, 0.1) == [] and commits._producer.client is not stuck, "a new client")
    assert line.arrived() == [0, 1, 2, 3, 4]


class Mute:
    """A client whose call for the offsets never comes back, as librdkafka's may not when its broker is killed."""

    def __init__(self, client):
        self._client = client
        self.is_asked = threading.Event()
        self.may_end = threading.Event()

    def __getattr__(self, name):
        return getattr(self._client, name)

    def send_offsets_to_transaction(self, *_):
        self.is_asked.set()
        self.may_end.wait(2 * DEADLINE_S)


@pytest.mark.slow
def test_a_call_that_never_comes_back_is_given_up_with_its_client(broker, monkeypatch):
    monkeypatch.setattr(open_transaction, "_PATIENCE_S", 1.0)
    line = Line(broker)
    line.send(5)
    with line.opened(producer_config=TIMES_OUT) as adapter:
        producer = adapter._group._commits._producer
        until(lambda: adapter.receive(0, 0.05) == [] and producer._is_ready, "a producer")
        mute = producer.client = Mute(producer.client)
        try:
            for _ in range(5):
                line.settle(adapter, *receive(adapter))
            until(lambda: adapter.receive(1, 0.1) == [] and line.committed() == 5, "all offsets")
            assert mute.is_asked.is_set()
            assert producer.client is not mute
        finally:
            mute.may_end.set()
    assert line.arrived() == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_an_aborted_transaction_leaves_neither_output_nor_offset_and_the_message_runs_again(broker):
    line = Line(broker)
    line.send(1)
    with line.opened(consumer_config=IMPATIENT) as adapter:
        commits = adapter._group._commits
        until(lambda: adapter.receive(0, 0.05) == [] and commits._producer._is_ready, "a producer")
        commits._producer.client = Unreliable(
            commits._producer.client, "commit_transaction", ERRORS["abort"], happens=False
        )
        (delivery,) = receive(adapter)
        line.settle(adapter, delivery)
        until(lambda: adapter.receive(1, 0.05) == [] and commits.retry_at < 1e9, "an abort")
        time.sleep(3)  # the group gives the partition away
        (delivery,) = receive(adapter)
        assert (line.arrived(), line.committed()) == ([], 0)
        assert 0 in line.arrived("read_uncommitted")
        line.settle(adapter, delivery)
    assert (line.arrived(), line.committed()) == ([0], 1)
    copies = broker.read_raw(line.target, "read_uncommitted")
    assert len(copies) > 1
    assert len({dict(copy.headers())[KEY_HEADER] for copy in copies}) == 1


def test_a_message_that_was_done_gives_its_output_when_its_transaction_was_not(broker, monkeypatch):
    line = Line(broker)
    line.send(2)
    runs = []

    def handle(message):
        runs.append(message.body)
        return line.pass_on(message)

    monkeypatch.setattr(Transactions, "start", lambda *_: None)
    adapter = line.adapter()
    with line.working(handle, adapter):
        until(lambda: len(runs) == 2, "both")
        (partition,) = adapter._group.assignment._turns
        lose_partitions(adapter)
        until(lambda: not partition.is_open, "a new assignment")
        monkeypatch.undo()
        until(line.is_through(2), "all offsets")
    assert (line.arrived(), len(runs)) == ([0, 1], 4)


# A broker that is not there


@pytest.mark.slow
@pytest.mark.parametrize("outages", [["kill"], ["stop", "pause"]])
def test_an_outage_of_the_broker_loses_and_doubles_no_output(spare, outages):
    kafka = spare(PrivateKafka)
    line = Line(Broker(kafka.url), 2)
    count = 700 * len(outages)
    line.send(count)

    def slowly(message):
        time.sleep(0.002)
        return line.pass_on(message)

    adapter = line.adapter(producer_config=TIMES_OUT, commit_interval_s=0.05)
    with line.working(slowly, adapter, concurrency=2):
        for number, outage in enumerate(outages):
            until(lambda number=number: line.committed() > 100 + 600 * number, "progress")
            getattr(kafka, outage)()
            time.sleep(4 if outage == "pause" else 0.5)  # a pause longer than a transaction may take
            kafka.recover()
        until(line.is_through(count), "all offsets")
    line.check_once_and_in_order(count)


@pytest.mark.slow
def test_without_a_broker_a_worker_still_ends_in_time(spare):
    kafka = spare(PrivateKafka)
    line = Line(Broker(kafka.url))
    line.send(2)
    with line.opened(commit_interval_s=999, consumer_config=IMPATIENT) as adapter:
        line.settle(adapter, *receive(adapter))
        kafka.kill()
        for _ in range(10):
            began = time.monotonic()
            adapter.receive(10, 0.2)
            assert time.monotonic() - began < 10
        began = time.monotonic()
        adapter.close()
        assert time.monotonic() - began < 60
    kafka.start()
    with line.working():
        until(line.is_through(2), "all offsets")
    assert line.arrived() == [0, 1]
