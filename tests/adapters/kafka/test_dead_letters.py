"""Copies: dead letters, and retries in a topic of their own."""

import secrets
import time

import pytest
from confluent_kafka import Producer

from idempotent import Message, Outcome, Result
from idempotent.adapters.copies import (
    ATTEMPT_HEADER,
    KEY_HEADER,
    ORIGIN_HEADER,
    OUTCOME_HEADER,
    REASON_HEADER,
)
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.adapters.kafka.records import TIMESTAMP_HEADER
from idempotent.checkers import MemoryChecker
from idempotent.policy import Backoff
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.member import ACK, GROUP, bodies, nothing_comes, receive, send, working
from tests.adapters.kafka.test_contract import lose_partitions


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


@pytest.mark.slow
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
    assert dict(again[2].message.raw.headers())[ORIGIN_HEADER] == f"{topic}/0/0".encode()
    adapter.settle(again[0], ACK)
    adapter.settle(again[1], ACK)
    adapter.settle(again[2], Result(Outcome.DEAD, error=ValueError("no")))
    adapter.close()
    (letter,) = broker.read(f"{topic}.dlq")
    assert letter.id == first[0].message.id
    assert letter.headers[ORIGIN_HEADER] == f"{topic}/0/0"
    assert [broker.committed(GROUP, name) for name in (topic, retry)] == [3, 3]


@pytest.mark.parametrize("options", [{}, {"ordering": "none", "retry_topic": True}], ids=["memory", "topic"])
def test_a_dead_letter_says_how_often_its_message_was_tried(broker, topic, options):
    broker.make(f"{topic}.{GROUP}.retry")
    send(broker, topic, 1)

    def handle(_):
        raise ValueError("poison")

    adapter = KafkaAdapter(broker.bootstrap, **options)
    with working(adapter, topic, handle, max_attempts=3, backoff=Backoff(0.02, 0.02)):
        until(lambda: broker.read_raw(f"{topic}.dlq"), "a dead letter")
    (letter,) = broker.read(f"{topic}.dlq")
    assert letter.headers[ATTEMPT_HEADER] == "3"


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
