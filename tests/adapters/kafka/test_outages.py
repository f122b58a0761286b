"""A broker or a topic that is not there."""

import logging
import secrets
import threading
import time

import pytest

from idempotent import Message, Registry, Worker
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.adapters.kafka import brokers as kafka_brokers
from idempotent.adapters.kafka import group as kafka_group
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError, ConfigurationError, PublishError
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.broker import Broker
from tests.adapters.kafka.member import ACK, GROUP, bodies, nothing, nothing_comes, receive, send, working
from tests.support.logs import events, logged
from tests.support.services import PrivateKafka


@pytest.mark.slow
def test_a_broker_that_is_killed_and_comes_back_repeats_no_effect(spare, caplog):
    kafka = spare(PrivateKafka)
    broker = Broker(kafka.url)
    topic = f"orders-{secrets.token_hex(6)}"
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
    unreachable = [record.error for record in logged(caplog, "broker_unreachable")]
    assert unreachable
    assert not [error for error in unreachable if "TLS" in error]
    about_the_broker = [
        event for event in events(caplog) if event in ("broker_unreachable", "broker_connected")
    ]
    assert about_the_broker[-1] == "broker_connected", "the end of the outage is said"
    assert about_the_broker.count("broker_connected") == 1
    assert len(done) == len(set(done)) == 400
    assert sum(broker.committed(GROUP, topic, number) for number in range(2)) == 400


@pytest.mark.slow
def test_while_the_broker_is_down_calls_come_back_in_time(spare):
    kafka = spare(PrivateKafka)
    broker = Broker(kafka.url)
    topic = f"orders-{secrets.token_hex(6)}"
    broker.make(topic)
    send(broker, topic, 2)
    adapter = KafkaAdapter(kafka.url, ordering="none", publish_timeout_s=1.0)
    adapter.open([Registry().consumer(topic, group=GROUP, checker=MemoryChecker())(nothing)])
    first, _ = receive(adapter, 2)
    kafka.kill()
    adapter.settle(first, ACK)
    for _ in range(20):
        began = time.monotonic()
        adapter.receive(10, 0.2)
        assert time.monotonic() - began < 5
    with pytest.raises(PublishError, match=f"for '{topic}' is not confirmed") as raised:
        adapter.publish_many([Message(topic), Message(topic)])
    assert (set(raised.value.unknown), raised.value.refused) == ({0, 1}, {})
    began = time.monotonic()
    adapter.close()
    assert time.monotonic() - began < 20


def test_a_broker_that_never_answers_is_waited_for_or_not(opened, caplog, monkeypatch):
    monkeypatch.setattr(kafka_brokers, "_ANSWER_S", 1.0)
    adapter = opened("orders", bootstrap="127.0.0.1:1")
    with caplog.at_level(logging.WARNING):
        nothing_comes(adapter, 1.5)
    assert not adapter.connected
    assert "broker_unreachable" in events(caplog)
    with pytest.raises(AdapterError, match=r"cannot connect to Kafka at 127\.0\.0\.1:1"):
        KafkaAdapter("127.0.0.1:1", fail_fast=True, client_config={"socket.timeout.ms": 500}).open(
            [Registry().consumer("orders", group=GROUP, checker=MemoryChecker())(nothing)]
        )


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 1])
def test_a_missing_topic_is_in_the_health_file_and_again_in_the_log_until_it_is_there(
    broker, topic, others, caplog, monkeypatch, tmp_path
):
    monkeypatch.setattr(kafka_group, "_LOOK_AGAIN_S", 0.3)
    monkeypatch.setattr(kafka_group, "_SAY_AGAIN_S", 0.6)
    missing, health, seen = f"orders-{secrets.token_hex(6)}", tmp_path / "health", []
    registry = Registry()
    for name in [missing, topic][: 1 + others]:
        registry.consumer(name, group=GROUP, checker=MemoryChecker())(
            lambda message: seen.append(message.subject)
        )
    quick = {"topic.metadata.refresh.interval.ms": 300}
    worker = Worker(
        registry,
        KafkaAdapter(broker.bootstrap, consumer_config=quick),
        health_file=health,
        gc_interval_s=None,
    )
    thread = threading.Thread(target=worker.run)
    thread.start()

    def says(word, end):
        found = health.read_text() if health.exists() else ""
        return found.startswith(word) and found.endswith(end)

    try:
        reason = f"waits for: topic {missing}: Broker: Unknown topic or partition\n"
        until(lambda: says("ready\n" if others else "waiting\n", reason), "the reason in the health file")
        until(lambda: len(logged(caplog, "kafka_waits")) >= 3, "the warning again")
        broker.make(missing)
        send(broker, missing, 1)
        until(lambda: says("ready\n", "ready\n"), "the end of the wait in the health file")
        until(lambda: seen == [missing], "its message")
    finally:
        worker.stop()
        thread.join(60)
    assert not thread.is_alive()
    assert {record.topic for record in logged(caplog, "kafka_waits")} == {missing}


def test_a_missing_topic_is_waited_for_or_not(broker, opened, caplog):
    topic = f"orders-{secrets.token_hex(6)}"
    quick = {"topic.metadata.refresh.interval.ms": 300}
    with pytest.raises(ConfigurationError, match=f"topic {topic}"):
        receive(hasty := opened(topic, fail_fast=True, consumer_config=quick))
    hasty.close()
    adapter = opened(topic, consumer_config=quick)
    with caplog.at_level(logging.WARNING):
        until(lambda: adapter.receive(1, 0.2) or "kafka_waits" in events(caplog), "a warning")
    broker.make(topic)
    send(broker, topic, 1)
    assert bodies(receive(adapter)) == [0]
