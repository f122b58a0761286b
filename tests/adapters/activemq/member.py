"""A consumer of a queue, and what tests do with it."""

import time

from idempotent import Outcome, Result
from idempotent.adapters.activemq import StompAdapter
from idempotent.adapters.copies import KEY_HEADER
from idempotent.policy import Backoff
from tests.adapters.activemq.stomp_client import client, in_queue, until_in_queue
from tests.support.working import run_until

ACK = Result(Outcome.PROCESSED)
DEADLINE_S = 90.0
QUICK = Backoff(initial_s=0.05, maximum_s=0.5)


def send(url, name, *keys, body=b"", **headers):
    with client(url) as sender:
        for key in keys:
            sender.publish(f"/queue/{name}", body, {KEY_HEADER: key, **headers})


def receive(adapter, count):
    found, deadline = [], time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
        found += adapter.receive(count - len(found), 0.1)
    return found


def confirmed(adapter):
    """Serve the adapter until the broker has confirmed its copies."""
    deadline = time.monotonic() + DEADLINE_S
    while adapter._epoch is not None and len(adapter._epoch._copies):
        assert time.monotonic() < deadline
        adapter.receive(0, 0.01)


def ids(deliveries):
    return [delivery.message.id for delivery in deliveries]


def left(url, name):
    return [message.id for message in in_queue(url, f"/queue/{name}")]


def until_left(url, name, *expected):
    found = until_in_queue(url, f"/queue/{name}", len(expected))
    assert [message.id for message in found] == list(expected)


def frames_sent_by(adapter, monkeypatch):
    """Everything the adapter writes from now on."""
    transport = adapter._epoch.connection._transport
    sent, transmit = [], transport.transmit
    monkeypatch.setattr(transport, "transmit", lambda frame: (sent.append(frame), transmit(frame))[1])
    return sent


def commands(sent):
    return [frame.cmd for frame in sent if frame.cmd]


def work_until(registry, url, is_done, **options):
    return run_until(registry, StompAdapter(url, backoff=QUICK, **options), is_done, concurrency=3)
