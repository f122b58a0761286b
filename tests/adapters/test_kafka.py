"""What is Kafka's own: offsets, lanes, rebalances, topics that come and go."""

import logging
import secrets
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from idempotent import Message, Outcome, Registry, Result, Worker
from idempotent.adapters import adapter_from_url, kafka, kafka_group
from idempotent.adapters.copies import KEY_HEADER, ORIGIN_HEADER, OUTCOME_HEADER, REASON_HEADER
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.adapters.kafka_records import TIMESTAMP_HEADER
from idempotent.checkers import AttemptChecker, MemoryChecker
from idempotent.errors import AdapterError, ConfigurationError
from idempotent.policy import Backoff
from idempotent.testing.adapter_contract import AdapterContract, until
from tests.adapters.kafka_broker import Broker
from tests.adapters.test_kafka_contract import lose_partitions

ACK = Result(Outcome.PROCESSED)
GROUP = "billing"
# As small as the test broker lets it be: a group misses a member after a second and a half.
IMPATIENT = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300, "max.poll.interval.ms": 1500}
receive = AdapterContract.receive
nothing_comes = AdapterContract.nothing_comes


def nothing(_):
    """A handler."""


@pytest.fixture
def broker(kafka_bootstrap):
    return Broker(kafka_bootstrap)


@pytest.fixture
def topic(broker):
    name = f"orders-{secrets.token_hex(6)}"
    broker.make(name)
    broker.make(f"{name}.dlq")
    return name


@pytest.fixture
def opened(broker):
    """`opened(topic, **options)`: an adapter that is a member of the group."""
    adapters = []

    def open_(topic, group=GROUP, bootstrap=None, **options):
        adapter = KafkaAdapter(bootstrap or broker.bootstrap, **options)
        adapters.append(adapter)
        adapter.open([Registry().consumer(topic, group=group, checker=MemoryChecker())(nothing)])
        return adapter

    yield open_
    for adapter in adapters:
        adapter.close()


@contextmanager
def working(adapter, topic, handler, *, group=GROUP, checker=None, concurrency=1, batch_size=1, **options):
    registry = Registry()
    registry.consumer(topic, group=group, checker=checker or MemoryChecker(), **options)(handler)
    worker = Worker(registry, adapter, concurrency, batch_size, gc_interval_s=None)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(150)
        assert not thread.is_alive()


def send(broker, topic, count, **options):
    for number in range(count):
        broker.send(topic, str(number).encode(), **options)
    broker.flush()


def bodies(deliveries):
    return [int(delivery.message.body) for delivery in deliveries]


# Offsets


def test_an_offset_is_committed_only_when_all_before_it_are_settled(broker, topic, opened):
    send(broker, topic, 4)
    adapter = opened(topic, ordering="none")
    first, second, third, _ = receive(adapter, 4)
    adapter.settle(second, ACK)
    adapter.settle(third, ACK)
    adapter.close()
    assert broker.committed(GROUP, topic) is None
    adapter = opened(topic, ordering="none")
    first, second, third, fourth = receive(adapter, 4)
    for delivery in (fourth, second, first):
        adapter.settle(delivery, ACK)
    adapter.close()
    assert broker.committed(GROUP, topic) == 2


@pytest.mark.parametrize(
    "options", [{"commit_interval_s": 0.1}, {"commit_interval_s": 999, "commit_every": 3}]
)
def test_commits_come_by_time_and_by_number(broker, topic, opened, options):
    send(broker, topic, 3)
    adapter = opened(topic, **options)
    for _ in range(3):
        (delivery,) = receive(adapter)
        adapter.settle(delivery, ACK)
    nothing_comes(adapter)
    assert broker.committed(GROUP, topic) == 3


def test_offsets_with_gaps_are_no_trouble(broker, topic, opened):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for aborts in (False, True, False):
        producer.begin_transaction()
        for number in range(2):
            producer.produce(topic, str(number + 10 * aborts).encode())
        producer.flush()
        producer.abort_transaction() if aborts else producer.commit_transaction()
    adapter = opened(topic)
    seen = []
    for _ in range(4):
        (delivery,) = receive(adapter)
        seen.append(delivery.message.position.offset)
        assert int(delivery.message.body) < 10
        adapter.settle(delivery, ACK)
    assert seen == [0, 1, 6, 7]
    adapter.close()
    assert broker.committed(GROUP, topic) == 8
    nothing_comes(opened(topic))


@pytest.mark.parametrize("semantics", ["at_least_once", "exactly_once"])
def test_offsets_that_compaction_took_away_are_no_trouble(broker, opened, semantics):
    topic = f"orders-{secrets.token_hex(6)}"
    soon = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"}
    broker.make(topic, **{"cleanup.policy": "compact", **soon})
    for number in range(40):
        broker.send(topic, str(number).encode(), key=b"few" if number % 10 else str(number))
    broker.flush()

    def is_compacted():
        time.sleep(0.2)
        broker.send(topic, b"40", key="last")  # begins a new segment; the newest one is never compacted
        broker.flush()
        return len(broker.read_raw(topic)) < 20

    until(is_compacted, "gaps")
    checker = AttemptChecker() if semantics == "exactly_once" else MemoryChecker()
    seen = []
    adapter = KafkaAdapter(broker.bootstrap, semantics=semantics, ordering="none", commit_interval_s=0.1)
    with working(adapter, topic, lambda message: seen.append(message.position), checker=checker):
        end = broker.read_raw(topic)[-1].offset() + 1
        until(lambda: broker.committed(GROUP, topic) == end, "all offsets")
    offsets = [position.offset for position in seen]
    assert offsets != list(range(offsets[0], offsets[0] + len(offsets)))
    assert {0, 10, 20, 30, 39} <= set(offsets)


@pytest.mark.parametrize(
    ("outcome", "again", "letters", "committed"),
    [
        (Outcome.PROCESSED, 0, 0, 1),
        (Outcome.DUPLICATE, 0, 0, 1),
        (Outcome.IGNORED, 0, 0, 1),
        (Outcome.FAILED, 1, 0, None),
        (Outcome.DEAD, 0, 1, 1),
        (Outcome.REJECTED, 0, 1, 1),
    ],
)
def test_what_becomes_of_each_outcome(broker, topic, opened, outcome, again, letters, committed):
    send(broker, topic, 1)
    adapter = opened(topic)
    (delivery,) = receive(adapter)
    adapter.settle(delivery, Result(outcome, error=ValueError("no"), retry_after_s=0.0))
    seen = []
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        seen += adapter.receive(5, 0.1)
    adapter.close()
    assert len(seen) == again
    assert len(broker.read(f"{topic}.dlq")) == letters
    assert broker.committed(GROUP, topic) == committed


def test_held_messages_are_the_workers_affair(broker, topic, opened):
    send(broker, topic, 1)
    adapter = opened(topic)
    (delivery,) = receive(adapter)
    for outcome in (Outcome.IN_PROGRESS, Outcome.UNAVAILABLE):
        with pytest.raises(ValueError, match="HOLD"):
            adapter.settle(delivery, Result(outcome))


# Order


def test_with_the_ordering_partition_one_failure_holds_all_behind_it(broker, topic, opened):
    send(broker, topic, 3)
    adapter = opened(topic)
    (delivery,) = adapter_deliveries = receive(adapter)
    assert bodies(adapter_deliveries) == [0]
    nothing_comes(adapter, 0.3)
    adapter.settle(delivery, Result(Outcome.FAILED, retry_after_s=0.6))
    nothing_comes(adapter, 0.3)
    seen = []
    for _ in range(3):
        (delivery,) = receive(adapter)
        seen += bodies([delivery])
        adapter.settle(delivery, ACK)
    assert seen == [0, 1, 2]


def test_a_wider_lane_fills_batches_and_lets_nothing_past_a_failure(broker, topic, opened):
    send(broker, topic, 6)
    adapter = opened(topic, max_in_flight_per_partition=3)
    first, second, third = receive(adapter, 3)
    nothing_comes(adapter, 0.3)
    adapter.settle(second, Result(Outcome.FAILED, retry_after_s=0.3))
    adapter.settle(third, ACK)
    adapter.settle(first, ACK)
    assert bodies(receive(adapter, 3)) == [1, 3, 4]


def test_with_the_ordering_key_only_messages_of_that_key_wait(broker, topic, opened):
    for number, key in enumerate((b"a", b"a", b"b", None, None)):
        broker.send(topic, str(number).encode(), key)
    broker.flush()
    adapter = opened(topic, ordering="key")
    deliveries = receive(adapter, 4)
    assert sorted(bodies(deliveries)) == [0, 2, 3, 4]
    nothing_comes(adapter, 0.3)
    (first,) = (delivery for delivery in deliveries if delivery.message.body == b"0")
    adapter.settle(first, ACK)
    assert bodies(receive(adapter)) == [1]


def test_no_more_than_the_limit_of_a_partition_is_out_at_once(broker, topic, opened):
    send(broker, topic, 5)
    adapter = opened(topic, ordering="none", max_in_flight_per_partition=2)
    first, _ = receive(adapter, 2)
    nothing_comes(adapter, 0.3)
    adapter.settle(first, ACK)
    assert bodies(receive(adapter)) == [2]


@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_pauses_and_failures_keep_the_order_while_many_threads_work(broker, opened, ordering):
    topic = f"orders-{secrets.token_hex(6)}"
    broker.make(topic, 3)
    keys = [f"customer-{number}".encode() for number in range(7)]
    for number in range(300):
        broker.send(topic, str(number).encode(), keys[number % 7])
    broker.flush()
    seen, failed = {}, set()

    def handle(message):
        time.sleep(secrets.randbelow(3) / 1000)
        number = int(message.body)
        if number % 50 == 0 and number not in failed:
            failed.add(number)
            raise ValueError
        seen.setdefault(message.raw.key(), []).append(number)

    adapter = KafkaAdapter(broker.bootstrap, ordering=ordering, max_pending_per_partition=10)
    with working(adapter, topic, handle, concurrency=4, backoff=Backoff(0.05, 0.05)):
        until(lambda: sum(map(len, seen.values())) >= 300, "300 effects")
    for numbers in seen.values():
        assert numbers == sorted(numbers)
    assert sum(map(len, seen.values())) == 300
    assert len(failed) == 6


def test_a_backlog_is_left_with_the_broker(broker, topic, opened):
    send(broker, topic, 5000)
    adapter = opened(topic, ordering="none", max_pending_per_partition=10, max_in_flight_per_partition=3)
    deliveries = receive(adapter, 3)
    nothing_comes(adapter, 1.0)
    (partition,) = adapter._group.assignment._turns
    assert len(partition._watermark) <= 10 + 2 * 500  # what one fetch brings comes on top
    seen = []
    while len(seen) < 5000:
        seen += bodies(deliveries)
        for delivery in deliveries:
            adapter.settle(delivery, ACK)
        deliveries = receive(adapter) if len(seen) < 5000 else []
    assert seen == list(range(5000))


# Identity


def test_a_message_without_an_id_is_named_by_where_it_lies(broker, topic, opened):
    send(broker, topic, 1)
    (delivery,) = receive(opened(topic))
    topic_id, number, offset = delivery.message.id.split("/")
    assert (number, offset) == ("0", "0")
    assert topic_id != topic
    position = delivery.message.position
    assert (position.partition, position.offset, position.expected) == (0, 0, 0)


def test_a_topic_that_is_made_again_brings_no_duplicates(broker, topic, opened):
    ids, adapter = [], opened(topic)
    # While it is consumed, then while it is not.
    for count in (3, 2, 4):
        send(broker, topic, count)
        for _ in range(count):
            (delivery,) = receive(adapter)
            ids.append(delivery.message.id)
            adapter.settle(delivery, ACK)
        if count == 2:
            adapter.close()
        broker.drop(topic)
        until(lambda: _makes(broker, topic), "a topic")
        if count == 2:
            adapter = opened(topic)
    assert len(set(ids)) == 9


def _makes(broker, topic):
    try:
        broker.make(topic)
    except Exception:
        return False
    return True


def test_a_dead_letter_is_a_true_copy_with_its_origin(broker, topic, opened):
    headers = [("colour", b"\xff\xfe"), ("twice", b"1"), ("twice", b"2"), ("none", None)]
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    written = int(time.time() * 1000) - 60_000  # one of years ago would fall to the topic's retention
    producer.produce(topic, b"\0body", b"customer", headers=headers, timestamp=written)
    producer.flush()
    adapter = opened(topic)
    (delivery,) = receive(adapter)
    adapter.settle(delivery, Result(Outcome.DEAD, error=ValueError("no such customer")))
    adapter.close()
    (letter,) = broker.read_raw(f"{topic}.dlq")
    assert (letter.value(), letter.key()) == (b"\0body", b"customer")
    copied = letter.headers()
    assert copied[:4] == headers
    ours = {name: value.decode() for name, value in copied[4:]}
    assert ours[KEY_HEADER] == delivery.message.id
    assert ours[ORIGIN_HEADER] == f"{topic}/0/0"
    assert ours[REASON_HEADER] == "ValueError: no such customer"
    assert ours[OUTCOME_HEADER] == "dead"
    assert ours[TIMESTAMP_HEADER] == str(written)


def test_a_letter_that_is_published_again_is_the_same_message(broker, topic, opened):
    broker.send(topic, b"1", b"customer")
    broker.flush()
    adapter = opened(topic)
    (original,) = receive(adapter)
    adapter.settle(original, Result(Outcome.DEAD))
    nothing_comes(adapter, 0.3)
    reader = opened(adapter.dead_letter_subject(topic), group="redrive")
    (letter,) = receive(reader)
    reader.publish(Message(topic, letter.message.body, id=letter.message.id, raw=letter.message.raw))
    (again,) = receive(adapter)
    assert again.message.id == original.message.id
    assert again.message.raw.key() == b"customer"


# Dead letters and crashes


def test_a_dead_letter_that_nobody_took_loses_nothing(broker, opened):
    topic = f"orders-{secrets.token_hex(6)}"
    broker.make(topic)
    send(broker, topic, 2)
    # librdkafka would give a topic that it does not find half a minute.
    impatient = {"topic.metadata.propagation.max.ms": 100}
    adapter = opened(topic, producer_config=impatient, ordering="none", commit_interval_s=0.1)
    first, second = receive(adapter, 2)
    adapter.settle(first, Result(Outcome.DEAD, error=ValueError("no")))
    adapter.settle(second, ACK)
    (again,) = receive(adapter, within_s=15)
    assert again.message.id == first.message.id
    lose_partitions(adapter)  # as in a crash between the verdict and the confirmed copy
    assert len(receive(adapter, 2)) == 2
    assert broker.committed(GROUP, topic) is None
    broker.make(f"{topic}.dlq")
    adapter.close()
    adapter = opened(topic, ordering="none")
    for delivery in receive(adapter, 2):
        adapter.settle(delivery, Result(Outcome.DEAD, error=ValueError("no")))
    adapter.close()
    assert len(broker.read(f"{topic}.dlq")) == 2
    assert broker.committed(GROUP, topic) == 2


# Retry topics


def test_with_a_retry_topic_a_failure_holds_back_nothing_and_stays_the_same_message(broker, topic, opened):
    retry = f"{topic}.{GROUP}.retry"
    broker.make(retry)
    send(broker, topic, 3)
    adapter = opened(topic, ordering="none", retry_topic=True, max_pending_per_partition=2)
    first = receive(adapter, 3)
    for delivery, delay_s in zip(first, (1.5, 0.1, 0.1), strict=True):
        adapter.settle(delivery, Result(Outcome.FAILED, error=ValueError(), retry_after_s=delay_s))
    again = receive(adapter, 3)
    assert sorted(bodies(again)[:2]) == [1, 2]
    assert bodies(again)[2] == 0
    assert {d.message.id for d in again} == {d.message.id for d in first}
    assert {d.message.subject for d in again} == {topic}
    assert again[2].message.headers[ORIGIN_HEADER] == f"{topic}/0/0"
    adapter.settle(again[0], ACK)
    adapter.settle(again[1], ACK)
    adapter.settle(again[2], Result(Outcome.DEAD, error=ValueError("no")))
    adapter.close()
    (letter,) = broker.read(f"{topic}.dlq")
    assert letter.id == first[0].message.id
    assert letter.headers[ORIGIN_HEADER] == f"{topic}/0/0"
    assert [broker.committed(GROUP, name) for name in (topic, retry)] == [3, 3]


# At most once


def test_at_most_once_commits_before_the_handler_and_forgets_failures(broker, topic, opened):
    send(broker, topic, 3)
    adapter = opened(topic, semantics="at_most_once", ordering="none")
    receive(adapter, 2)
    assert broker.committed(GROUP, topic) == 2
    lose_partitions(adapter)
    (third,) = receive(adapter)
    assert third.message.body == b"2"
    adapter.settle(third, Result(Outcome.FAILED, retry_after_s=0.0))
    nothing_comes(adapter)


# Groups and rebalances


def test_two_groups_each_get_every_message(broker, topic, opened):
    send(broker, topic, 1)
    for group in ("billing", "mail"):
        (delivery,) = receive(opened(topic, group=group))
        assert delivery.message.body == b"0"


def test_a_message_has_its_effect_once_in_each_group_although_they_share_a_store(broker, topic):
    broker.send(topic, b"0", **{KEY_HEADER: "m-1"})
    broker.flush()
    done, checker = [], MemoryChecker()
    for group in ("billing", "mail", "billing"):
        adapter = KafkaAdapter(broker.bootstrap, commit_interval_s=0.1)
        with working(adapter, topic, lambda _, to=group: done.append(to), group=group, checker=checker):
            until(lambda to=group: broker.committed(to, topic) == 1, "a commit")
    assert done == ["billing", "mail"]


def test_consumers_of_two_groups_do_not_fit_one_adapter(kafka_bootstrap):
    registry = Registry()
    consumers = [
        registry.consumer(subject, group=subject, checker=MemoryChecker())(nothing) for subject in ("a", "b")
    ]
    with pytest.raises(ConfigurationError, match="one consumer group, and these are of a, b"):
        KafkaAdapter(kafka_bootstrap).open(consumers)


@pytest.mark.parametrize(
    "strategy",
    [
        {},
        {"partition.assignment.strategy": "range"},
        {"group.protocol": "consumer"},
    ],
    ids=["cooperative", "eager", "KIP-848"],
)
def test_workers_that_come_and_go_repeat_nothing_and_lose_nothing(broker, strategy):
    topic = f"orders-{secrets.token_hex(6)}"
    broker.make(topic, 4)
    send(broker, topic, 400)
    checker, done = MemoryChecker(lease_s=10.0), []

    def handle(message):
        time.sleep(0.01)
        done.append(message.id)

    def adapter():
        return KafkaAdapter(
            broker.bootstrap, ordering="none", commit_interval_s=0.1, consumer_config=strategy
        )

    first, second = adapter(), adapter()
    with working(first, topic, handle, checker=checker, concurrency=4):
        until(lambda: len(done) > 50, "the first effects")
        with working(second, topic, handle, checker=checker, concurrency=2):
            until(lambda: len(done) > 250, "more effects")
        until(lambda: len(done) >= 400, "all effects")
        time.sleep(0.3)
    assert len(done) == len(set(done)) == 400
    assert sum(broker.committed(GROUP, topic, number) or 0 for number in range(4)) == 400


def test_what_is_revoked_is_committed_as_far_as_it_is_finished(broker, topic, opened):
    send(broker, topic, 3)
    adapter = opened(topic, ordering="none", commit_interval_s=999)
    first, second, third = receive(adapter, 3)
    adapter.settle(first, ACK)
    adapter.settle(third, ACK)
    lose_partitions(adapter)
    assert bodies(receive(adapter, 2)) == [1, 2]
    assert broker.committed(GROUP, topic) == 1
    adapter.settle(second, ACK)
    adapter.requeue(second)
    assert adapter.stale_settlements == 2


def test_what_is_lost_is_not_committed(broker, topic, opened, caplog):
    send(broker, topic, 2)
    adapter = opened(topic, ordering="none", commit_interval_s=999, consumer_config=IMPATIENT)
    first, second = receive(adapter, 2)
    adapter.settle(first, ACK)
    time.sleep(3)  # nobody polls, so the group gives the partition away
    assert bodies(receive(adapter, 2)) == [0, 1]
    assert broker.committed(GROUP, topic) is None
    assert "commit_failed" not in caplog.messages  # it was not even tried
    adapter.settle(second, ACK)
    assert adapter.stale_settlements == 1


def test_a_handler_may_take_longer_than_the_group_waits_for_a_member(broker, topic):
    send(broker, topic, 1)
    done = []

    def handle(message):
        time.sleep(5)
        done.append(message.id)

    adapter = KafkaAdapter(broker.bootstrap, consumer_config=IMPATIENT)
    with working(adapter, topic, handle):
        until(lambda: done, "the effect")
        time.sleep(0.5)
    assert len(done) == 1
    assert adapter.stale_settlements == 0
    assert broker.committed(GROUP, topic) == 1


# A worker's promises


def test_a_stop_in_order_leaves_nothing_finished_to_come_again(broker, topic):
    send(broker, topic, 50)
    done, checker = [], MemoryChecker()

    def handle(message):
        time.sleep(0.01)
        done.append(message.id)

    def adapter():
        return KafkaAdapter(broker.bootstrap, ordering="none", commit_interval_s=999)

    with working(adapter(), topic, handle, checker=checker, concurrency=4):
        until(lambda: len(done) > 10, "some effects")
    so_far = broker.committed(GROUP, topic)
    assert so_far == len(done)
    with working(adapter(), topic, handle, checker=checker, concurrency=4) as worker:
        until(lambda: len(done) == 50, "the rest")
    assert worker._outcomes[Outcome.DUPLICATE] == 0
    assert broker.committed(GROUP, topic) == 50


def test_poison_becomes_a_dead_letter_after_its_attempts_across_restarts(broker, topic):
    send(broker, topic, 2)
    checker, calls, done = MemoryChecker(), [], []

    def handle(message):
        if message.body == b"0":
            calls.append(message.id)
            raise ValueError("poison")
        done.append(message.id)

    for attempts in (1, 2):
        adapter = KafkaAdapter(broker.bootstrap)
        backoff = Backoff(0.5, 0.5)
        with working(adapter, topic, handle, checker=checker, max_attempts=3, backoff=backoff):
            until(lambda least=attempts: len(calls) >= least, "an attempt")
    with working(KafkaAdapter(broker.bootstrap), topic, handle, checker=checker, max_attempts=3):
        until(lambda: done, "the message behind it")
    assert len(calls) == 3
    (letter,) = broker.read(f"{topic}.dlq")
    assert letter.headers[REASON_HEADER] == "ValueError: poison"
    assert broker.committed(GROUP, topic) == 2


# A broker that is not there


def test_a_broker_that_is_killed_and_comes_back_repeats_no_effect(private_kafka):
    kafka = private_kafka()
    broker = Broker(kafka.url)
    topic = "orders"
    broker.make(topic, 2)
    done, checker = [], MemoryChecker(lease_s=10.0)

    def handle(message):
        time.sleep(0.005)
        done.append(message.id)

    adapter = KafkaAdapter(kafka.url, ordering="none", commit_interval_s=0.1)
    send(broker, topic, 300)
    with working(adapter, topic, handle, checker=checker, concurrency=2):
        until(lambda: len(done) > 50, "the first effects")
        assert adapter.connected
        kafka.kill()
        until(lambda: not adapter.connected, "no connection")
        kafka.start()
        until(lambda: adapter.connected, "a connection")
        send(broker, topic, 100)
        until(lambda: len(done) >= 400, "all effects")
        time.sleep(0.5)
    assert len(done) == len(set(done)) == 400
    assert sum(broker.committed(GROUP, topic, number) for number in range(2)) == 400


def test_while_the_broker_is_down_calls_come_back_in_time(private_kafka):
    kafka = private_kafka()
    broker = Broker(kafka.url)
    broker.make("orders")
    send(broker, "orders", 2)
    adapter = KafkaAdapter(kafka.url, ordering="none", publish_timeout_s=1.0)
    adapter.open([Registry().consumer("orders", group=GROUP, checker=MemoryChecker())(nothing)])
    first, _ = receive(adapter, 2)
    kafka.kill()
    adapter.settle(first, ACK)
    for _ in range(20):
        began = time.monotonic()
        adapter.receive(10, 0.2)
        assert time.monotonic() - began < 1
    with pytest.raises(AdapterError, match="did not take a message for orders"):
        adapter.publish(Message("orders"))
    began = time.monotonic()
    adapter.close()
    assert time.monotonic() - began < 20


def test_a_broker_that_never_answers_is_waited_for_or_not(opened, caplog, monkeypatch):
    monkeypatch.setattr(kafka_group, "_ANSWER_S", 1.0)
    adapter = opened("orders", bootstrap="127.0.0.1:1")
    with caplog.at_level(logging.WARNING):
        nothing_comes(adapter, 1.5)
    assert not adapter.connected
    assert "broker_unreachable" in caplog.messages
    with pytest.raises(AdapterError, match=r"cannot connect to Kafka at 127\.0\.0\.1:1"):
        KafkaAdapter("127.0.0.1:1", fail_fast=True, client_config={"socket.timeout.ms": 500}).open(
            [Registry().consumer("orders", group=GROUP, checker=MemoryChecker())(nothing)]
        )


def test_a_missing_topic_is_waited_for_or_not(broker, opened, caplog):
    topic = f"orders-{secrets.token_hex(6)}"
    quick = {"topic.metadata.refresh.interval.ms": 300}
    with pytest.raises(ConfigurationError, match=f"topic {topic}"):
        receive(hasty := opened(topic, fail_fast=True, consumer_config=quick))
    hasty.close()
    adapter = opened(topic, consumer_config=quick)
    with caplog.at_level(logging.WARNING):
        nothing_comes(adapter, 1.0)
    assert "kafka_waits" in caplog.messages
    broker.make(topic)
    send(broker, topic, 1)
    assert bodies(receive(adapter)) == [0]


# Settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"consumer_config": {"enable.auto.commit": True}}, "enable.auto.commit must stay off"),
        ({"consumer_config": {"enable.auto.offset.store": "true"}}, "must stay off"),
        ({"consumer_config": {"group.id": "x"}}, "the consumers' group"),
        ({"producer_config": {"acks": 1}}, "given by acks="),
        ({"acks": 2}, "acks must be"),
        ({"acks": 1, "idempotent_producer": True}, "needs acks='all'"),
        (
            {"semantics": "twice"},
            "'at_least_once', 'at_most_once', 'effectively_once', 'exactly_once', not 'twice'",
        ),
        ({"semantics": "at_most_once", "ordering": "key"}, "goes with the orderings"),
        ({"retry_topic": True}, "ordering='none' alone"),
        ({"ordering": "random"}, "'partition', 'key', 'none'"),
        ({"max_in_flight_per_partition": 0}, "at least 1"),
        ({"commit_interval_s": 0}, "above 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, words):
    with pytest.raises(ConfigurationError, match=words):
        KafkaAdapter("localhost:9092", **options)


def test_a_setting_that_librdkafka_does_not_know_is_refused_without_the_password(opened):
    with pytest.raises(ConfigurationError, match=r'No such configuration property: "no\.such"') as caught:
        opened("orders", sasl_username="me", sasl_password="secret", consumer_config={"no.such": 1})
    assert "secret" not in str(caught.value)


def test_a_url_names_brokers_credentials_and_options():
    adapter = adapter_from_url("kafka://me:p%40ss@one:9092,two:9093?ordering=key&commit_every=5&acks=1")
    assert isinstance(adapter, KafkaAdapter)
    assert adapter._security == {
        "bootstrap.servers": "one:9092,two:9093",
        "log_level": 2,
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "p@ss",
    }
    assert (adapter._limits.ordering.value, adapter._commit_every) == ("key", 5)
    for url in ("kafka://", "kafka://host/topic", "kafka://host?colour=red"):
        with pytest.raises(ConfigurationError):
            adapter_from_url(url)


@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_published_messages_arrive_whatever_is_waited_for(broker, topic, opened, acks):
    adapter = opened(topic, acks=acks)
    adapter.publish(Message(topic, b"7", id="m-1"))
    (delivery,) = receive(adapter)
    assert (delivery.message.id, delivery.message.raw.key()) == ("m-1", b"m-1")


def test_without_the_client_library_the_error_says_what_to_type():
    code = "import sys; sys.modules['confluent_kafka'] = None; import idempotent.adapters.kafka"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert 'pip install "idempotent-consumer[kafka]"' in done.stderr.splitlines()[-1]


# Messages that are too large


def test_a_message_larger_than_a_fetch_still_comes(broker, topic, opened):
    broker.send(topic, b"x" * 500_000)
    broker.flush()
    small = dict.fromkeys(("message.max.bytes", "fetch.max.bytes", "max.partition.fetch.bytes"), 1000)
    adapter = opened(topic, consumer_config=small)
    assert len(receive(adapter)[0].message.body) == 500_000


def test_a_message_that_the_topic_does_not_take_is_an_error_and_the_next_one_goes_through(broker, opened):
    topic = f"orders-{secrets.token_hex(6)}"
    broker.make(topic, **{"max.message.bytes": "10000"})
    adapter = opened(topic)
    with pytest.raises(AdapterError, match="Message size too large"):
        adapter.publish(Message(topic, b"x" * 20_000, id="large"))
    adapter.publish(Message(topic, b"x", id="small"))
    assert receive(adapter)[0].message.id == "small"


def test_a_dead_letter_that_is_too_large_waits_for_a_topic_that_takes_it(broker, opened, caplog, monkeypatch):
    monkeypatch.setattr(kafka, "_COPY_AGAIN", Backoff(initial_s=0.2, maximum_s=1.0))
    topic = f"orders-{secrets.token_hex(6)}"
    # As large as the original, so that our headers do not fit.
    broker.make(topic, **{"max.message.bytes": "20000"})
    broker.make(f"{topic}.dlq", **{"max.message.bytes": "20000"})
    broker.send(topic, b"x" * 19_900)
    broker.send(topic, b"small")
    broker.flush()
    done = []

    def handle(message):
        done.append(message.body)
        if message.body != b"small":
            raise ValueError("poison")

    adapter = KafkaAdapter(broker.bootstrap, ordering="none", commit_interval_s=0.1)
    with working(adapter, topic, handle, max_attempts=1):
        until(lambda: len(done) == 2, "both")
        until(
            lambda: [
                getattr(record, "error", "") for record in caplog.records if record.msg == "copy_failed"
            ][1:],
            "several attempts",
        )
        assert broker.committed(GROUP, topic) is None
        broker.configure(f"{topic}.dlq", **{"max.message.bytes": "30000"})
        until(lambda: broker.read(f"{topic}.dlq"), "the dead letter")
        until(lambda: broker.committed(GROUP, topic) == 2, "its offset")
    assert any("too large" in getattr(record, "error", "") for record in caplog.records)
    (letter,) = broker.read(f"{topic}.dlq")
    assert letter.body == b"x" * 19_900
    assert len(done) == 2
