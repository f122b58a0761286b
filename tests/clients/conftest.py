"""A RabbitMQ queue and a Kafka topic, each with a service that consumes it."""

import secrets

import pytest

from idempotent.adapters.kafka import KafkaAdapter
from tests.adapters.kafka.broker import Broker
from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.clients.service import Service


@pytest.fixture
def rabbit(rabbitmq_url):
    rabbit = Rabbit(rabbitmq_url)
    yield rabbit
    rabbit.clean_up()


@pytest.fixture
def queue(rabbit):
    return rabbit.declare(rabbit.name())


@pytest.fixture
def serve_queue(rabbit, queue):
    """`serve_queue(**options)`: a service that consumes the queue."""
    return lambda **options: Service(rabbit.adapter, queue, **options)


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
def serve_topic(broker, topic):
    """`serve_topic(**options)`: a service that consumes the topic."""
    return lambda **options: Service(lambda: KafkaAdapter(broker.bootstrap), topic, **options)
