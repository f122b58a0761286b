"""A loop over stomp.py that its user wrote: its messages are the adapter's."""

# The fixtures of the adapter are parameters here.
# ruff: noqa: F811

from __future__ import annotations

import queue
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import stomp

from idempotent import Message
from idempotent.adapters.activemq import from_stomp
from tests.adapters.activemq.conftest import make, name  # noqa: F401
from tests.adapters.activemq.stomp_client import StompClient
from tests.adapters.rabbitmq.rabbit import receive

DEADLINE_S = 30


@contextmanager
def reading(url, name, *, auto_decode):
    """Frames of a queue that stomp.py receives, none of which is acknowledged."""
    frames = queue.Queue()

    class Listener(stomp.ConnectionListener):
        def on_message(self, frame):
            frames.put(frame)

    parts = urlsplit(url)
    connection = stomp.Connection12([(parts.hostname, parts.port)], auto_decode=auto_decode)
    connection.set_listener("", Listener())
    connection.connect(wait=True)
    connection.subscribe(f"/queue/{name}", id="1", ack="client-individual")
    yield lambda: frames.get(timeout=DEADLINE_S)
    connection.disconnect()


@pytest.mark.parametrize("auto_decode", [False, True])
def test_the_message_is_the_adapters(stomp_url, name, make, auto_decode):
    client = StompClient(stomp_url)
    client.publish(f"/queue/{name}", b"plain", {"tenant": "a:b", "priority": "7"})
    client.publish(f"/queue/{name}", "\N{PILE OF POO} own".encode(), {"x-idempotent-key": "8"})
    client.close()
    with reading(stomp_url, name, auto_decode=auto_decode) as frame:
        mine = [from_stomp(name, frame()) for _ in range(2)]
    theirs = [delivery.message for delivery in receive(make(), 2)]
    names = ("subject", "body", "id", "headers", "key", "timestamp", "position")
    for one, other in zip(mine, theirs, strict=True):
        assert [getattr(one, each) for each in names] == [getattr(other, each) for each in names]
        assert one.from_broker
    assert mine[0].headers == {"tenant": "a:b", "priority": "7"}
    assert mine[1].id == "8"


def test_a_copy_of_the_adapter_is_the_message_that_it_copied(stomp_url, name, make):
    adapter = make()
    sent = Message(name, "\N{PILE OF POO}".encode(), id="\N{PILE OF POO}", headers={"x": "\N{PILE OF POO}"})
    adapter.publish(sent)
    adapter.close()
    with reading(stomp_url, name, auto_decode=False) as frame:
        mine = from_stomp(name, frame())
    assert (mine.id, mine.body, dict(mine.headers)) == (sent.id, sent.body, dict(sent.headers))
