"""From Kafka to Kafka: what a handler returns and the offset of its message appear together, once."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import TopicPartition

from idempotent import Message, Registry
from idempotent.adapters import adapter_from_url
from idempotent.adapters.copies import KEY_HEADER
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.checkers import AttemptChecker, MemoryChecker
from idempotent.errors import AdapterError, ConfigurationError
from idempotent.policy import Backoff
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.line import GROUP, Line
from tests.adapters.kafka.member import IMPATIENT, nothing_comes, receive
from tests.adapters.kafka.test_contract import lose_partitions

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


@pytest.mark.slow
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
        return None if number == 0 else [Message(line.target, message.body) for _ in range(number)]

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
            Message(line.target, None, id="keyed", key="another"),
        ]

    with line.working(handle):
        until(line.is_through(2), "all offsets")
    first, second, keyed, third, fourth, _ = broker.read(line.target)
    assert (keyed.id, keyed.raw.key(), keyed.raw.value()) == ("keyed", b"another", None)
    assert second.raw.value() == b""
    assert (first.id, first.raw.key()) == ("order-1/0", b"customer")
    assert (second.id, second.headers["colour"], second.raw.key()) == ("mine", "red", b"customer")
    topic_id = third.id.split("/")[0]
    assert (third.id, third.raw.key()) == (f"{topic_id}/0/1/0/0", f"{topic_id}/0/1/0/0".encode())
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


@pytest.mark.slow
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
            group._commits._owe()
        group.assignment.on_revoke(group.consumer, [TopicPartition(line.source, 0)])
        assert line.committed() == 2
        until(lambda: adapter.receive(1, 0.1) == [] and line.committed() == 4, "the other's")
    assert sorted(line.arrived()) == [0, 1, 2, 3]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def until_ready(adapter):
    producer = adapter._group._commits._producer
    until(lambda: adapter.receive(0, 0.05) == [] and producer._is_ready, "a producer")


def test_whoever_takes_a_transactional_id_ends_the_one_before(broker):
    line = Line(broker)
    line.send(2)
    with line.opened(transactional_id=line.source) as first:
        line.settle(first, *receive(first))
        until(lambda: first.receive(0, 0.05) == [] and line.committed() == 1, "the first offset")
        # Its first transaction may have been slow: then it has a new producer, which must not be the last to begin.
        until_ready(first)
        (delivery,) = receive(first)
        with line.opened(transactional_id=line.source) as second:
            until_ready(second)
            line.settle(first, delivery)
            with pytest.raises(AdapterError, match="belongs to another process now"):
                until(lambda: first.receive(0, 0.1) is None, "an error")
            first.close()
            line.settle(second, *receive(second))
    assert (line.arrived(), line.committed()) == ([0, 1], 2)


# Settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transactional_id": "x", "semantics": "at_least_once"}, "goes with semantics='exactly_once' or"),
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
