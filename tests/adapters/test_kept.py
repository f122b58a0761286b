"""A retry, a dead letter and a redriven message keep all that the transport carries."""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pika
import pytest

from idempotent import Registry, Worker
from idempotent.adapters.activemq import StompAdapter
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.adapters.rabbitmq import RabbitMqAdapter
from idempotent.checkers import MemoryChecker
from idempotent.policy import Backoff
from idempotent.redrive import Redriven, redrive
from idempotent.testing.adapter_contract import until
from tests.adapters.activemq.stomp_client import client, in_queue
from tests.adapters.kafka.broker import Broker
from tests.adapters.rabbitmq.rabbit import Rabbit

SOON = Backoff(initial_s=0.05, maximum_s=0.1)
GROUP = "billing"
# Older than the week for which Kafka keeps records as a rule.
LONG_AGO = datetime.now(UTC).replace(microsecond=0) - timedelta(days=30)


class KafkaPlace:
    """A topic that keeps all records; those of retries and dead letters keep them for a time."""

    headers = (("colour", b"red"), ("bytes", b"\xff"), ("twice", b"1"), ("twice", b"2"), ("none", None))
    expected = (b"customer", headers)
    sent_between = (LONG_AGO, LONG_AGO)

    def __init__(self, bootstrap):
        self.bootstrap, self.broker, self.subject = (
            bootstrap,
            Broker(bootstrap),
            f"orders-{secrets.token_hex(6)}",
        )
        self.broker.make(self.subject, 5, **{"retention.ms": "-1"})
        for name in ("dlq", f"{GROUP}.retry"):
            self.broker.make(f"{self.subject}.{name}")

    def adapter(self):
        return KafkaAdapter(self.bootstrap, ordering="none", retry_topic=True)

    def send(self):
        milliseconds = round(LONG_AGO.timestamp() * 1000)
        self.broker.produce(self.subject, b"\0\xff", b"customer", [*self.headers], 3, timestamp=milliseconds)

    def all_of(self, message):
        theirs = [pair for pair in message.raw.headers() if not pair[0].startswith("x-idempotent-")]
        return message.key, tuple(theirs)

    def letters(self):
        found = self.broker.read_raw(f"{self.subject}.dlq")
        # Retention goes by this time: an old one could delete a letter before anybody reads it.
        assert all(raw.timestamp()[1] / 1000 > time.time() - 600 for raw in found)
        return found


STOMP_HEADERS = {
    "priority": "7",
    "correlation-id": "c",
    "reply-to": "/queue/answers",
    "type": "paid",
    "colour": "red",
}
AMQP_HEADERS = {"colour": "red", "count": 7, "list": [1, {"a": b"\xff"}], "none": None, "yes": True}
AMQP_PROPERTIES = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "priority": 3,
    "correlation_id": "c",
    "reply_to": "answers",
    "message_id": "m",
    "timestamp": round(LONG_AGO.timestamp()),
    "type": "paid",
    "app_id": "shop",
    "cluster_id": "c1",
}


class StompPlace:
    """A queue."""

    expected = STOMP_HEADERS

    def __init__(self, url):
        self.url, self.subject = url, f"orders-{secrets.token_hex(6)}"

    def adapter(self):
        return StompAdapter(self.url, backoff=SOON)

    def send(self):
        with client(self.url) as sender:
            began = datetime.now(UTC)
            sender.publish(f"/queue/{self.subject}", b"\0\xff", STOMP_HEADERS)
            self.sent_between = (began - timedelta(seconds=1), datetime.now(UTC))

    def all_of(self, message):
        return dict(message.headers)

    def letters(self):
        return in_queue(self.url, f"/queue/{self.subject}.dead")


class RabbitPlace:
    """A queue."""

    expected = (AMQP_HEADERS, AMQP_PROPERTIES)
    sent_between = (LONG_AGO, LONG_AGO)

    def __init__(self, url):
        self.rabbit = Rabbit(url)
        self.subject = self.rabbit.declare(self.rabbit.name())
        self.user = pika.URLParameters(url).credentials.username

    def adapter(self):
        return RabbitMqAdapter(self.rabbit.url)

    def send(self):
        # These two are not kept: a copy with this expiration, or for another user, would be lost or refused.
        left_out = {"user_id": self.user, "expiration": "60000"}
        properties = pika.BasicProperties(**AMQP_PROPERTIES, **left_out, headers=AMQP_HEADERS)
        with self.rabbit.channel() as channel:
            self.rabbit.publish(channel, self.subject, b"\0\xff", properties)

    def all_of(self, message):
        properties = message.raw.properties
        return dict(message.headers), {name: getattr(properties, name) for name in AMQP_PROPERTIES}

    def letters(self):
        return self.rabbit.look(f"{self.subject}.dead")


@contextmanager
def working(worker):
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(params=["kafka", "stomp", "rabbitmq"])
def place(request):
    if request.param == "kafka":
        yield KafkaPlace(request.getfixturevalue("kafka_bootstrap"))
    elif request.param == "stomp":
        yield StompPlace(request.getfixturevalue("stomp_url"))
    else:
        place = RabbitPlace(request.getfixturevalue("rabbitmq_url"))
        yield place
        place.rabbit.clean_up()


def test_a_retry_a_dead_letter_and_a_redriven_message_keep_what_the_transport_carries(place):
    seen = []
    registry = Registry()

    @registry.consumer(
        place.subject,
        group=GROUP,
        checker=MemoryChecker(),
        key=lambda message: f"{message.id} {message.timestamp}",
        max_attempts=2,
        backoff=SOON,
    )
    def on_order(message):
        seen.append((message.body, message.headers, message.timestamp, place.all_of(message)))
        if len(seen) < 3:
            raise ValueError("not yet")

    with working(Worker(registry, place.adapter(), gc_interval_s=None)):
        place.send()
        until(place.letters, "a dead letter")
    assert redrive(on_order, place.adapter(), limit=1, idle_s=60) == Redriven(returned=1, reopened=1)
    with working(Worker(registry, place.adapter(), gc_interval_s=None)):
        until(lambda: len(seen) == 3, "a third run")
    first, retried, redriven = seen
    assert first == retried == redriven
    assert first[0] == b"\0\xff"
    assert first[3] == place.expected
    earliest, latest = place.sent_between
    assert earliest <= first[2] <= latest
