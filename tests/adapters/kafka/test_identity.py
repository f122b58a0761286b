"""What a message is called, also in a topic that was made again."""

import secrets
import time

import pytest
from confluent_kafka import TopicPartition

from idempotent.adapters.kafka import assignment as kafka_assignment
from idempotent.adapters.kafka import topics as kafka_topics
from idempotent.policy import Backoff
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.broker import Broker
from tests.adapters.kafka.member import ACK, receive, send
from tests.support.logs import logged


def test_a_message_without_an_id_is_named_by_where_it_lies(broker, topic, opened):
    send(broker, topic, 1)
    (delivery,) = receive(opened(topic))
    topic_id, number, offset, epoch = delivery.message.id.split("/")
    assert (number, offset, epoch) == ("0", "0", "0")
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


@pytest.mark.slow
@pytest.mark.parametrize("is_simulated", [False, True])
def test_a_topic_that_is_made_again_and_is_longer_is_read_from_the_beginning_or_named(
    broker, topic, opened, caplog, monkeypatch, is_simulated
):
    monkeypatch.setattr(kafka_assignment, "_LOOK_S", 1.0)
    adapter, read = opened(topic, ordering="none"), []

    def read_on(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for delivery in adapter.receive(10, 0.2):
                read.append(int(delivery.message.body))
                adapter.settle(delivery, ACK)

    send(broker, topic, 3)
    read_on(4)
    assert not logged(caplog, "topic_made_again"), "nobody has touched it"
    if is_simulated:
        # Of the real one the client tells in time, as a rule.
        (partition,) = adapter._group.assignment._turns
        partition._topic_id.value = "another"
    else:
        read.clear()
        broker.drop(topic)
        until(lambda: _makes(broker, topic), "a topic")
        send(Broker(broker.bootstrap), topic, 30)
    read_on(8)
    told = logged(caplog, "topic_made_again")
    assert len(told) == 1 if is_simulated else told or sorted(read) == list(range(30))


def test_an_id_that_is_asked_for_in_vain_is_named_and_asked_for_as_long_as_it_is_wanted(
    broker, topic, opened, caplog, monkeypatch
):
    monkeypatch.setattr(kafka_topics, "_RETRY", Backoff(initial_s=0.05, maximum_s=0.2))
    adapter = opened(topic)
    ids = adapter._group.assignment._topic_ids
    missing = f"orders-{secrets.token_hex(6)}"
    (wanted,) = ids.ask({missing}).values()

    def asked():
        adapter.receive(0, 0.05)
        return len(logged(caplog, "topic_id_unknown"))

    until(lambda: asked() >= 3, "look-ups in vain")
    assert adapter.waits_for == f"the id of topic {missing}: {wanted.problem}"
    del wanted
    until(lambda: asked() and not ids.unknown, "the last answer")
    count, end = asked(), time.monotonic() + 2
    while time.monotonic() < end:
        assert asked() == count, "nobody wants it any more"
    (wanted,) = ids.ask({missing}).values()
    until(lambda: asked() > count, "another look-up")
    broker.make(missing)
    until(lambda: asked() and wanted.value, "the id")
    assert adapter.waits_for is None


@pytest.mark.parametrize("was_another", [False, True])
def test_a_client_that_goes_back_says_that_a_topic_was_made_again_only_if_it_was(
    broker, topic, opened, caplog, was_another
):
    adapter = opened(topic, ordering="none")
    send(broker, topic, 3)
    receive(adapter, 3)
    (partition,) = adapter._group.assignment._turns
    if was_another:
        partition._topic_id.value = "another"
    # librdkafka 2.16 does this by itself when it is moved while it looks for the beginning.
    adapter._group.consumer.seek(TopicPartition(topic, 0, 0))
    again = receive(adapter, 3)
    assert [delivery.message.position.offset for delivery in again] == [0, 1, 2]
    adapter.receive(0, 0.0)
    assert len(logged(caplog, "offsets_began_anew")) == was_another
