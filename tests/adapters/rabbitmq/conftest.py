"""A broker, a queue, and adapters that consume it."""

import pytest

from tests.adapters.rabbitmq.rabbit import Rabbit, consumer_of


@pytest.fixture
def rabbit(rabbitmq_url):
    rabbit = Rabbit(rabbitmq_url)
    yield rabbit
    rabbit.clean_up()


@pytest.fixture
def queue(rabbit):
    return rabbit.declare(rabbit.name())


@pytest.fixture
def opened(rabbit):
    """`opened(queue, ...)` is an open adapter that is closed after the test."""
    adapters = []

    def open_(*queues, **options):
        adapter = rabbit.adapter(**options)
        adapters.append(adapter)
        adapter.open([consumer_of(queue) for queue in queues])
        return adapter

    yield open_
    for adapter in adapters:
        adapter.close()
