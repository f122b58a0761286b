"""The brokers that an outbox is published to."""

from __future__ import annotations

import secrets
from contextlib import contextmanager

from idempotent import Message
from idempotent.adapters import adapter_from_url


class Place:
    """One broker, with queues of its own."""

    def __init__(self, url, make, relay_url=None):
        self.url, self.make = url, make
        self.relay_url = relay_url or url

    def send(self, subject, names):
        adapter = adapter_from_url(self.url)
        adapter.open([])
        try:
            adapter.publish_many([Message(subject, name.encode(), id=name) for name in names])
        finally:
            adapter.close()


@contextmanager
def rabbitmq(request):
    from tests.adapters.rabbitmq.rabbit import Rabbit

    rabbit = Rabbit(request.getfixturevalue("rabbitmq_url"))
    try:
        yield Place(rabbit.url, lambda *names: [rabbit.declare(name) for name in names])
    finally:
        rabbit.clean_up()


@contextmanager
def kafka(request, of_relays=""):
    from tests.adapters.kafka.broker import Broker

    broker = Broker(request.getfixturevalue("kafka_bootstrap"))

    def make(*names):
        for name in names:
            broker.make(name)
            broker.make(f"{name}.dlq")

    url = f"kafka://{broker.bootstrap}"
    yield Place(url, make, f"{url}{of_relays}")


def fenced_kafka(request):
    return kafka(request, f"?fenced=true&transactional_id=chain-{secrets.token_hex(4)}")


@contextmanager
def activemq(request):
    yield Place(request.getfixturevalue("stomp_url"), lambda *names: None)


BROKERS = {"rabbitmq": rabbitmq, "kafka": kafka, "fenced kafka": fenced_kafka, "activemq": activemq}
