"""The queues that RabbitMQ has for a run."""

import pytest

from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.torture.places import places_of


@pytest.fixture
def rabbit(rabbitmq_url):
    return Rabbit(rabbitmq_url)


@pytest.fixture
def queue(rabbit):
    first, _ = places_of(rabbit.url, rabbit.name("torture"))
    first.make()
    yield first.subject
    first.remove()


def test_what_is_returned_too_often_becomes_a_dead_letter_of_the_broker(rabbit, queue):
    with rabbit.channel() as channel:
        channel.queue_declare(f"{queue}.dead", durable=True)
        channel.basic_publish("", queue, b"x")

        def is_dead():
            method, _, _ = channel.basic_get(queue)
            if method is not None:
                channel.basic_nack(method.delivery_tag, requeue=True)
            return channel.queue_declare(f"{queue}.dead", passive=True).method.message_count == 1

        until(is_dead, "a dead letter")
