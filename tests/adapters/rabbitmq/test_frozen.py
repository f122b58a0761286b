"""A broker that keeps its connections, takes new ones, and does not answer."""

import threading
import time

import pytest

from idempotent import Message
from tests.adapters.rabbitmq.rabbit import Rabbit, consumer_of, receive
from tests.support.logs import events
from tests.support.services import PrivateRabbitMq


@pytest.mark.slow
def test_a_frozen_broker_does_not_keep_the_adapter_from_closing(spare):
    broker = spare(PrivateRabbitMq)
    rabbit = Rabbit(broker.url)
    adapter = rabbit.adapter()
    adapter.open([consumer_of(rabbit.declare(rabbit.name()))])
    broker.pause()
    closing = threading.Thread(target=adapter.close, daemon=True)
    try:
        closing.start()
        closing.join(30)
        assert not closing.is_alive()
    finally:
        broker.resume()


@pytest.mark.slow
def test_a_broker_that_is_frozen_at_the_start_is_waited_for(spare, caplog):
    broker = spare(PrivateRabbitMq)
    rabbit = Rabbit(broker.url)
    queue = rabbit.declare(rabbit.name())
    rabbit.send(Message(queue, id="1"))
    adapter = rabbit.adapter()
    broker.pause()
    try:
        adapter.open([consumer_of(queue)])
        deadline = time.monotonic() + 120
        while "broker_unreachable" not in events(caplog):
            assert time.monotonic() < deadline
            assert adapter.receive(1, 0.2) == []
    finally:
        broker.resume()
    (delivery,) = receive(adapter)
    assert delivery.message.id == "1"
    adapter.close()
