"""A loop over confluent-kafka that its user wrote: its messages are the adapter's, and each result moves its offset."""

# The fixtures of the adapter are parameters here.
# ruff: noqa: F811

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, TopicCollection

from idempotent import Message, Outcome, Result
from idempotent.adapters.kafka import from_confluent, settle
from idempotent.errors import AdapterError
from tests.adapters.kafka.conftest import broker, opened, topic  # noqa: F401
from tests.adapters.rabbitmq.rabbit import receive

DEADLINE_S = 30
GROUP = "loops"


@pytest.fixture
def consumer(broker, topic):
    config = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0}
    made = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{GROUP}-{topic}", **config})
    made.subscribe([topic])
    yield made
    made.close()


def got(consumer):
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        record = consumer.poll(0.2)
        if record is not None:
            assert record.error() is None
            return record
    raise AssertionError("no record")


def committed(consumer, broker, topic, offset):
    """Whether the group has committed an offset, soon."""
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        consumer.poll(0.05)
        if broker.committed(f"{GROUP}-{topic}", topic) == offset:
            return True
    return False


def topic_id_of(broker, topic):
    return broker.admin.describe_topics(TopicCollection([topic]))[topic].result().topic_id


def test_the_message_is_the_adapters(broker, topic, consumer, opened):
    broker.send(topic, b"plain", key=b"k")
    broker.send(topic, b"own", **{"x-idempotent-key": "8", "tenant": "a"})
    broker.send(topic, None, key=b"k")
    topic_id = topic_id_of(broker, topic)
    mine = [from_confluent(got(consumer), topic_id) for _ in range(3)]
    adapter, theirs = opened(topic, group="others"), []
    for _ in mine:
        (delivery,) = receive(adapter)
        theirs.append(delivery.message)
        adapter.settle(delivery, Result(Outcome.PROCESSED))
    names = ("subject", "body", "id", "headers", "key", "timestamp")
    for one, other in zip(mine, theirs, strict=True):
        assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]
        assert (one.position.topic_id, one.position.offset) == (
            other.position.topic_id,
            other.position.offset,
        )
    assert [message.body for message in mine] == [b"plain", b"own", None]
    assert mine[1].id == "8"


@pytest.mark.parametrize("outcome", [Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.IGNORED])
def test_what_is_done_is_committed(broker, topic, consumer, outcome):
    broker.send(topic, b"1")
    settle(Result(outcome), consumer, got(consumer))
    assert committed(consumer, broker, topic, 1)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.IN_PROGRESS, Outcome.UNAVAILABLE])
def test_what_is_not_done_is_read_again_after_a_pause_and_before_later_records(
    broker, topic, consumer, outcome
):
    broker.send(topic, b"1", partition=0)
    broker.send(topic, b"2", partition=0)
    first = got(consumer)
    began = time.monotonic()
    settle(Result(outcome, retry_after_s=0.7), consumer, first)
    assert time.monotonic() - began >= 0.7
    assert [got(consumer).value() for _ in range(2)] == [b"1", b"2"]
    assert broker.committed(f"{GROUP}-{topic}", topic) in (None, -1001)


@pytest.mark.parametrize("outcome", [Outcome.DEAD, Outcome.REJECTED])
def test_what_never_succeeds_is_kept_and_then_committed(broker, topic, consumer, outcome):
    broker.send(topic, b"1")
    record, kept = got(consumer), []
    with pytest.raises(AdapterError, match="Kafka has no dead letters"):
        settle(Result(outcome), consumer, record)
    with pytest.raises(ZeroDivisionError):
        settle(Result(outcome), consumer, record, dead_letter=lambda *_: 1 / 0)
    assert broker.committed(f"{GROUP}-{topic}", topic) != 1
    settle(Result(outcome, error=ValueError("no")), consumer, record, dead_letter=lambda *it: kept.append(it))
    assert [(each.value(), "no" in why) for each, why in kept] == [(b"1", True)]
    assert committed(consumer, broker, topic, 1)


def test_a_record_whose_partition_went_to_another_member_is_left_to_it(broker, topic, consumer):
    broker.send(topic, b"1")
    record = got(consumer)
    consumer.unassign()
    settle(Result(Outcome.FAILED, retry_after_s=0.1), consumer, record)


def test_it_is_a_message_of_a_broker(broker, topic, consumer):
    broker.send(topic, b"1")
    message = from_confluent(got(consumer), topic_id_of(broker, topic))
    assert isinstance(message, Message)
    assert message.from_broker
