"""From Kafka to Kafka: what a handler returns and the offset of its message appear together, once."""

from __future__ import annotations

import logging
import secrets
import threading
import time

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from idempotent import Message, Registry
from idempotent.adapters import adapter_from_url, kafka_attempt
from idempotent.adapters.copies import KEY_HEADER, REASON_HEADER
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.adapters.kafka_transactions import Transactions
from idempotent.checkers import AttemptChecker, MemoryChecker
from idempotent.errors import AdapterError, ConfigurationError
from idempotent.policy import Backoff
from idempotent.testing.adapter_contract import DEADLINE_S, AdapterContract, until
from tests.adapters.kafka.broker import Broker
from tests.adapters.kafka.line import GROUP, Line
from tests.adapters.kafka.test_contract import lose_partitions

# As small as the test broker lets it be: a group misses a member after a second and a half.
IMPATIENT = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300, "max.poll.interval.ms": 1500}
receive = AdapterContract.receive
nothing_comes = AdapterContract.nothing_comes


# Outputs and offsets


def test_outputs_and_offsets_appear_together(broker):
    line = Line(broker)
    line.send(3)
    with line.opened(commit_interval_s=999) as adapter:
        for _ in range(3):
            line.settle(adapter, *receive(adapter))
        nothing_comes(adapter)
        assert (line.arrived("read_uncommitted"), line.committed()) == ([], 0)
    assert (line.arrived(), line.committed()) == ([0, 1, 2], 3)


@pytest.mark.parametrize(
    "options", [{"commit_interval_s": 0.1}, {"commit_interval_s": 999, "commit_every": 3}]
)
def test_transactions_come_by_time_and_by_number(broker, options):
    line = Line(broker)
    line.send(3)
    with line.opened(**options) as adapter:
        for _ in range(3):
            line.settle(adapter, *receive(adapter))
        nothing_comes(adapter, 1.0)
        assert (line.arrived(), line.committed()) == ([0, 1, 2], 3)


def test_outputs_of_what_finished_out_of_order_wait_for_the_messages_before(broker):
    line = Line(broker)
    line.send(3)
    with line.opened(ordering="none") as adapter:
        first, _, third = receive(adapter, 3)
        line.settle(adapter, third)
        nothing_comes(adapter, 1.0)
        assert line.arrived("read_uncommitted") == []
        line.settle(adapter, first)
        nothing_comes(adapter, 1.0)
        assert (line.arrived(), line.committed()) == ([0], 1)
    with line.opened(ordering="none") as adapter:  # what was not committed comes again, and nothing else
        line.settle(adapter, *receive(adapter, 2))
    assert (sorted(line.arrived()), line.committed()) == ([0, 1, 2], 3)


def test_a_message_may_have_no_output_or_many(broker):
    line = Line(broker)
    line.send(4)

    def handle(message):
        number = int(message.body)
        return None if number == 0 else (Message(line.target, message.body) for _ in range(number))

    with line.working(handle):
        until(line.is_through(4), "all offsets")
    assert line.arrived() == [1, 2, 2, 3, 3, 3]


def test_an_output_without_an_id_has_one_that_the_next_run_gives_too(broker):
    line = Line(broker)
    broker.send(line.source, b"0", key=b"customer", **{KEY_HEADER: "order-1"})
    broker.send(line.source, b"1")
    broker.flush()

    def handle(message):
        return [
            Message(line.target, message.body),
            Message(line.target, id="mine", headers={"colour": "red"}),
        ]

    with line.working(handle):
        until(line.is_through(2), "all offsets")
    first, second, third, fourth = broker.read(line.target)
    assert (first.id, first.raw.key()) == ("order-1/0", b"customer")
    assert (second.id, second.headers["colour"], second.raw.key()) == ("mine", "red", b"customer")
    topic_id = third.id.split("/")[0]
    assert (third.id, third.raw.key()) == (f"{topic_id}/0/1/0", f"{topic_id}/0/1/0".encode())
    assert fourth.id == "mine"


def test_a_failed_message_runs_again_and_gives_its_output_once(broker):
    line = Line(broker)
    line.send(3)
    runs = []

    def handle(message):
        runs.append(message.body)
        if runs == [b"0", b"1"]:
            raise ValueError("not yet")
        return Message(line.target, message.body)

    with line.working(handle, backoff=Backoff(0.05, 0.1)):
        until(line.is_through(3), "all offsets")
    assert line.arrived() == [0, 1, 2]


def test_a_partition_waits_when_its_outputs_are_not_sent(broker, monkeypatch):
    line = Line(broker)
    line.send(3000)
    with line.opened(
        max_pending_per_partition=10, max_in_flight_per_partition=5, commit_interval_s=999
    ) as adapter:
        monkeypatch.setattr(adapter._group._commits, "start", lambda *_: None)
        seen = []
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            deliveries = adapter.receive(5, 0.1)
            seen += deliveries
            line.settle(adapter, *deliveries)
        assert len(seen) < 3000


# Errors


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
    with line.opened() as adapter:
        producer = adapter._group._commits._producer
        until(lambda: adapter.receive(0, 0.05) == [] and producer._is_ready, "a producer")
        unreliable = producer.client = Unreliable(producer.client, step, ERRORS[kind], happens=happens)
        for _ in range(5):
            line.settle(adapter, *receive(adapter))
        until(lambda: adapter.receive(1, 0.1) == [] and line.committed() == 5, "all offsets")
        assert unreliable.is_spent
    assert line.arrived() == [0, 1, 2, 3, 4]


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
    monkeypatch.setattr(kafka_attempt, "_PATIENCE_S", 1.0)
    line = Line(broker)
    line.send(5)
    with line.opened() as adapter:
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


def test_a_call_that_never_comes_back_is_given_up_with_its_client(broker, monkeypatch):
    monkeypatch.setattr(kafka_attempt, "_PATIENCE_S", 1.0)
    line = Line(broker)
    line.send(5)
    with line.opened() as adapter:
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
        until(lambda: adapter.receive(1, 0.05) == [] and commits.again_at < 1e9, "an abort")
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


# Rebalances


def test_outputs_of_a_revoked_partition_are_sent_before_it_goes(broker):
    line = Line(broker)
    line.send(3)
    with line.opened(ordering="none", commit_interval_s=999) as adapter:
        first, _, third = receive(adapter, 3)
        line.settle(adapter, first, third)
        lose_partitions(adapter)
        assert [int(delivery.message.body) for delivery in receive(adapter, 2)] == [1, 2]
        assert (line.arrived(), line.committed()) == ([0], 1)


@pytest.mark.parametrize("is_owed", [False, True])
def test_what_stays_after_a_revoke_is_committed_without_another_message(broker, is_owed):
    line = Line(broker, 2)
    line.send(4)
    with line.opened(ordering="none", commit_interval_s=1.0) as adapter:
        line.settle(adapter, *receive(adapter, 4))
        group = adapter._group
        if is_owed:  # a transaction was aborted a moment ago
            group.assignment._finished = 0
            group._commits._owe(dict.fromkeys(group.assignment._turns, 2))
        group.assignment.on_revoke(group.consumer, [TopicPartition(line.source, 0)])
        assert line.committed() == 2
        until(lambda: adapter.receive(1, 0.1) == [] and line.committed() == 4, "the other's")
    assert sorted(line.arrived()) == [0, 1, 2, 3]


def test_outputs_of_a_lost_partition_are_nobodys(broker):
    line = Line(broker)
    line.send(2)
    with line.opened(ordering="none", commit_interval_s=999, consumer_config=IMPATIENT) as adapter:
        first, second = receive(adapter, 2)
        line.settle(adapter, first)
        time.sleep(3)  # nobody polls, so the group gives the partition away
        again = receive(adapter, 2)
        line.settle(adapter, second)
        assert adapter.stale_settlements == 1
        line.settle(adapter, *again)
    assert (line.arrived(), line.committed()) == ([0, 1], 2)


def test_a_transaction_of_an_earlier_generation_is_refused(broker):
    line = Line(broker)
    line.send(1)
    with line.opened(commit_interval_s=999, consumer_config=IMPATIENT) as adapter:
        line.settle(adapter, *receive(adapter))
        time.sleep(3)  # the group has forgotten this process, which does not know it yet
        group = adapter._group
        (partition,) = group.assignment._turns
        assert not group._commits.commit(group.consumer, {partition: 1})
        assert (line.arrived(), line.committed()) == ([], 0)


@pytest.mark.parametrize(
    "strategy",
    [{}, {"partition.assignment.strategy": "range"}, {"group.protocol": "consumer"}],
    ids=["cooperative", "eager", "KIP-848"],
)
def test_workers_that_come_and_go_give_each_output_once(broker, strategy):
    line = Line(broker, 4)
    line.send(600)

    def slowly(message):
        time.sleep(0.005)
        return line.pass_on(message)

    with line.working(slowly, line.adapter(consumer_config=strategy), concurrency=2):
        until(lambda: line.committed() > 50, "the first offsets")
        with line.working(slowly, line.adapter(consumer_config=strategy), concurrency=2):
            until(lambda: line.committed() > 300, "more offsets")
        until(line.is_through(600), "all offsets")
    line.check_once_and_in_order(600)


def test_whoever_takes_a_transactional_id_ends_the_one_before(broker):
    line = Line(broker)
    line.send(2)
    with line.opened(transactional_id=line.source) as first:
        line.settle(first, *receive(first))
        until(lambda: first.receive(0, 0.05) == [] and line.committed() == 1, "the first offset")
        (delivery,) = receive(first)
        with line.opened(transactional_id=line.source) as second:
            producer = second._group._commits._producer
            until(lambda: second.receive(0, 0.05) == [] and producer._is_ready, "a producer")
            line.settle(first, delivery)
            with pytest.raises(AdapterError, match="belongs to another process now"):
                until(lambda: first.receive(0, 0.1) is None, "an error")
            first.close()
            line.settle(second, *receive(second))
    assert (line.arrived(), line.committed()) == ([0, 1], 2)


# What cannot be sent


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("text", "not str"),
        ({"order": 1}, "not str"),
        (7, "not int"),
        ([Message("invoices"), 7], "not int"),
        ([Message("invoices", headers={1: "x"})], "a header's name is of type int"),
        ((1 / 0 for _ in "x"), "ZeroDivisionError"),
        (Message("no\0topic"), "no\0topic: embedded null character"),
        (Message("no topic!"), "for no topic!: "),
        (Message("nobody-made-this-topic"), "for nobody-made-this-topic: "),
        (Message("invoices", b"x" * 3_000_000), "Message size too large"),
    ],
)
def test_a_message_whose_outputs_cannot_be_sent_is_a_dead_letter(broker, value, reason):
    line = Line(broker)
    line.send(3)

    def handle(message):
        if message.body != b"1":
            return line.pass_on(message)
        if isinstance(value, Message) and value.subject == "invoices":
            return Message(line.target, value.body)
        return value

    quick = {"topic.metadata.propagation.max.ms": 500}
    with line.working(handle, line.adapter(producer_config=quick)):
        until(line.is_through(3), "all offsets")
    assert line.arrived() == [0, 2]
    (letter,) = line.letters()
    assert letter.body == b"1"
    assert reason.replace("\0", "") in letter.headers[REASON_HEADER].replace("\0", "")


def test_an_output_that_is_too_large_takes_none_with_it_that_shares_its_batch(broker):
    line = Line(broker, **{"max.message.bytes": 2000})
    line.send(60)
    bad = {17, 43}

    def handle(message):
        return Message(line.target, message.body.rjust(5000 if int(message.body) in bad else 500))

    adapter = line.adapter(
        commit_interval_s=1.0, max_in_flight_per_partition=60, producer_config={"linger.ms": 50}
    )
    with line.working(handle, adapter, batch_size=60):
        until(line.is_through(60), "all offsets")
    assert line.arrived() == [number for number in range(60) if number not in bad]
    assert {int(letter.body) for letter in line.letters()} == bad


def test_outputs_that_nobody_takes_hold_back_their_partition_alone_until_their_letter_is_safe(broker, caplog):
    line = Line(broker, 2)
    line.send(10)
    nowhere = f"nowhere-{secrets.token_hex(6)}"

    def handle(message):
        return Message(nowhere) if message.body == b"2" else line.pass_on(message)

    quick = {"topic.metadata.propagation.max.ms": 500, "message.timeout.ms": 1000}
    letters = f"letters-{secrets.token_hex(6)}"
    adapter = line.adapter(producer_config=quick, dead_letter_topic=letters)
    with caplog.at_level(logging.WARNING), line.working(handle, adapter):
        until(lambda: line.committed() == 5 + 1, "all of the other partition")
        until(lambda: "copy_failed" in caplog.messages, "an error")
        assert line.committed() == 6
        until(lambda: caplog.messages.count("copy_failed") > 2, "more of them")
        for number in (11, 13, 15):
            broker.send(line.source, str(number).encode(), partition=1)
            broker.flush()
            until(lambda number=number: number in line.arrived(), "the other partition goes on")
        broker.make(letters)
        until(line.is_through(13), "all offsets")
    assert sorted(line.arrived()) == [0, 1, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15]
    assert {letter.body for letter in broker.read(letters)} == {b"2"}


def test_a_message_that_fails_for_good_is_a_dead_letter_and_the_others_go_on(broker):
    line = Line(broker)
    line.send(3)

    def handle(message):
        if message.body == b"1":
            raise ValueError("poison")
        return line.pass_on(message)

    with line.working(handle, max_attempts=2, backoff=Backoff(0.05, 0.1)):
        until(line.is_through(3), "all offsets")
    assert line.arrived() == [0, 2]
    (letter,) = line.letters()
    assert letter.headers[REASON_HEADER] == "ValueError: poison"


# A broker that is not there


@pytest.mark.parametrize("outage", ["kill", "stop", "pause"])
def test_an_outage_of_the_broker_loses_and_doubles_no_output(private_kafka, outage):
    kafka = private_kafka()
    line = Line(Broker(kafka.url), 2)
    line.send(1500)

    def slowly(message):
        time.sleep(0.002)
        return line.pass_on(message)

    adapter = line.adapter(producer_config={"transaction.timeout.ms": 3000}, commit_interval_s=0.05)
    with line.working(slowly, adapter, concurrency=2):
        for progress in (100, 700):
            until(lambda progress=progress: line.committed() > progress, "progress")
            if outage == "pause":
                kafka.pause()
                time.sleep(5)  # longer than a transaction may take
                kafka.resume()
            else:
                getattr(kafka, outage)()
                time.sleep(0.5)
                kafka.start()
        until(line.is_through(1500), "all offsets")
    line.check_once_and_in_order(1500)


def test_without_a_broker_a_worker_still_ends_in_time(private_kafka):
    kafka = private_kafka()
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


# Settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transactional_id": "x", "semantics": "at_least_once"}, "goes with semantics='exactly_once' alone"),
        ({"transactional_id": ""}, "must not be empty"),
        ({"retry_topic": True, "ordering": "none"}, "retry_topic=True cannot go"),
        ({"consumer_config": {"isolation.level": "read_uncommitted"}}, "isolation.level must stay"),
        ({"client_config": {"isolation.level": "read_uncommitted"}}, "isolation.level must stay"),
        ({"producer_config": {"transactional.id": "x"}}, "given by transactional_id="),
    ],
)
def test_settings_that_cannot_keep_the_promise_are_refused(options, words):
    with pytest.raises(ConfigurationError, match=words):
        KafkaAdapter("localhost:9092", **{"semantics": "exactly_once", **options})


def test_checkers_and_consumers_that_cannot_keep_the_promise_are_refused():
    def check(semantics, checker, **options):
        consumer = Registry().consumer("orders", group=GROUP, checker=checker, **options)(lambda _: None)
        KafkaAdapter("localhost:9092", semantics=semantics).open([consumer])

    with pytest.raises(ConfigurationError, match=r"Use idempotent\.checkers\.AttemptChecker\(\)"):
        check("exactly_once", MemoryChecker())
    with pytest.raises(ConfigurationError, match="batch=True cannot go"):
        check("exactly_once", AttemptChecker(), batch=True)
    with pytest.raises(ConfigurationError, match="needs a checker that remembers"):
        check("effectively_once", AttemptChecker())
    for option in ("key", "fingerprint"):
        with pytest.raises(ConfigurationError, match=f"{option}= cannot go with AttemptChecker"):
            check("exactly_once", AttemptChecker(), **{option: lambda _: "x"})


def test_a_url_names_the_semantics_and_the_id():
    adapter = adapter_from_url("kafka://one:9092?semantics=exactly_once&transactional_id=billing-1")
    assert (adapter._semantics.value, adapter._transactional_id) == ("exactly_once", "billing-1")
