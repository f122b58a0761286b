"""Consumers that the broker removes without a word, while their connection lives."""

import time

import pytest

from idempotent import Message
from tests.adapters.activemq.member import ids, receive, send, until_left
from tests.adapters.activemq.opening import ACK, opened, until
from tests.support.logs import logged
from tests.support.services import PrivateActiveMq
from tests.support.services.activemq import IMPATIENCE_S

# The broker tells a consumer to close, which STOMP has no word for, and a second later removes it.
_GONE_S = IMPATIENCE_S + 1.5


@pytest.mark.parametrize(
    "busy",
    [pytest.param(False, marks=pytest.mark.slow), True],
    ids=["idle", "with a slow message"],
)
def test_a_consumer_that_the_broker_removed_is_noticed(spare, name, monkeypatch, caplog, busy):
    server = spare(PrivateActiveMq, "impatient")
    with opened(server.url, name) as adapter:
        send(server.url, name, "slow")
        (slow,) = receive(adapter, 1)
        if not busy:
            adapter.settle(slow, ACK)
        time.sleep(_GONE_S)
        send(server.url, name, "a")
        assert adapter.receive(1, 0.3) == [], "the broker has not removed the consumer"
        monkeypatch.setattr("idempotent.adapters.activemq.epoch.DOUBT_AFTER_S", 0.2)
        if busy:
            assert adapter.receive(1, 0.5) == [], "its message is still running"
            adapter.settle(slow, ACK)
        found = receive(adapter, 1 + busy)
        assert ids(found) == ["slow", "a"][1 - busy :]
        for delivery in found:
            adapter.settle(delivery, ACK)
    assert any(
        "has removed the consumer" in record.error for record in logged(caplog, "broker_connection_lost")
    )
    until_left(server.url, name)


@pytest.mark.parametrize("ack", ["individual", "client", "dups_ok", "transacted"])
def test_a_consumer_that_is_renewed_all_the_time_loses_nothing(spare, name, monkeypatch, caplog, ack):
    monkeypatch.setattr("idempotent.adapters.activemq.epoch.DOUBT_AFTER_S", 0.0)
    server = spare(PrivateActiveMq)
    seen = []
    with opened(server.url, name, ack=ack) as adapter:
        for number in range(40):
            adapter.publish(Message(name, id=str(number)))
            for delivery in adapter.receive(10, 0.02):
                seen.append(delivery.message.id)
                adapter.settle(delivery, ACK)

        def rest():
            for delivery in adapter.receive(10, 0.05):
                seen.append(delivery.message.id)
                adapter.settle(delivery, ACK)
            return len(set(seen)) == 40

        until(rest)
    assert sorted(seen, key=int) == [str(number) for number in range(40)]
    assert not logged(caplog, "broker_connection_lost")
    until_left(server.url, name)


def test_a_durable_subscription_is_renewed_and_that_of_a_topic_is_not(spare, name, monkeypatch):
    monkeypatch.setattr("idempotent.adapters.activemq.epoch.DOUBT_AFTER_S", 0.0)
    server = spare(PrivateActiveMq)
    for durable in (name, None):
        with opened(server.url, f"/topic/{name}", client_id=name, durable_subscription=durable) as adapter:
            adapter.receive(1, 0.2)
            renewed = [one.id for one in adapter._epoch._subscriptions.values()] != ["0"]
            assert renewed == (durable is not None)
            adapter.publish(Message(f"/topic/{name}", id="a"))
            assert ids(receive(adapter, 1)) == ["a"]
