"""A broker that is killed while delayed messages come back loses none of them."""

from __future__ import annotations

import time

import pytest

from idempotent import Message
from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.member import failed
from tests.adapters.rabbitmq.rabbit import Rabbit, consumer_of, receive
from tests.support.services import PrivateRabbitMq

# The first of them come back while the last are sent.
SENDING_S = 1.5


@pytest.mark.slow
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_killed_broker_loses_no_message_that_comes_back(spare, queue_type):
    broker = spare(PrivateRabbitMq)
    rabbit = Rabbit(broker.url)
    queue = rabbit.name()
    delays = make_delay_queue(rabbit, queue, queue_type)
    sent, began = set(), time.monotonic()
    while time.monotonic() < began + SENDING_S:
        some = [f"m-{number}" for number in range(len(sent), len(sent) + 20)]
        rabbit.send(*(Message(delays, id=each) for each in some))
        sent.update(some)
    broker.kill()
    broker.start()
    until(lambda: rabbit.depth(delays) == 0, "the end of all delays")
    came = {message.id for message in rabbit.look(f"{queue}.retry.due")}
    assert len(sent - came) == 0, f"{len(sent - came)} of {len(sent)} are lost"


def make_delay_queue(rabbit: Rabbit, queue: str, queue_type: str) -> str:
    """The queue that an adapter makes for messages that wait for a second."""
    adapter = rabbit.adapter(queue_type=queue_type)
    adapter.open([consumer_of(queue)])
    rabbit.send(Message(queue, id="first"))
    adapter.settle(*receive(adapter), failed(1.0))
    receive(adapter)
    adapter.close()
    return f"{queue}.retry.1000"
