"""A broker, a topic, and members of a group that reads it."""

import secrets

import pytest

from idempotent import Registry
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.checkers import MemoryChecker
from tests.adapters.kafka.broker import Broker
from tests.adapters.kafka.member import GROUP, nothing


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

    def open_(topic, group=GROUP, bootstrap=None, checker=None, **options):
        adapter = KafkaAdapter(bootstrap or broker.bootstrap, **options)
        adapters.append(adapter)
        adapter.open([Registry().consumer(topic, group=group, checker=checker or MemoryChecker())(nothing)])
        return adapter

    yield open_
    for adapter in adapters:
        adapter.close()
