"""The five acknowledgement modes."""

import pytest

from idempotent import Message, Outcome, Result
from tests.adapters.activemq.member import (
    ACK,
    commands,
    confirmed,
    frames_sent_by,
    ids,
    left,
    receive,
    send,
    until_left,
)


@pytest.mark.parametrize("ack", ["individual", "auto"])
def test_each_message_is_acknowledged_when_it_is_settled(make, stomp_url, name, ack):
    adapter = make(ack=ack)
    send(stomp_url, name, "a", "b", "c")
    deliveries = receive(adapter, 3)
    adapter.settle(deliveries[2], ACK)
    adapter.settle(deliveries[1], ACK)
    until_left(stomp_url, name, "a")


@pytest.mark.parametrize("ack", ["client", "dups_ok", "transacted"])
def test_a_cumulative_acknowledgement_never_covers_what_still_runs(make, stomp_url, name, ack):
    adapter = make(ack=ack, prefetch=3)
    send(stomp_url, name, "a", "b", "c")
    deliveries = receive(adapter, 3)
    adapter.settle(deliveries[1], ACK)
    adapter.settle(deliveries[2], ACK)
    for _ in range(10):
        adapter.receive(1, 0.1)
    assert left(stomp_url, name) == ["a", "b", "c"]
    adapter.settle(deliveries[0], ACK)
    adapter.receive(1, 0.5)
    until_left(stomp_url, name)


@pytest.mark.parametrize(
    ("ack", "options"),
    [("auto", {"optimize_acknowledge": True}), ("dups_ok", {})],
    ids=["optimized", "dups_ok"],
)
def test_groups_are_acknowledged_at_65_percent_of_the_prefetch(
    make, stomp_url, name, monkeypatch, ack, options
):
    adapter = make(ack=ack, prefetch=10, optimize_ack_timeout_s=1000.0, **options)
    send(stomp_url, name, *"abcdefghij")
    deliveries = receive(adapter, 10)
    sent = frames_sent_by(adapter, monkeypatch)
    for delivery in deliveries[:6]:
        adapter.settle(delivery, ACK)
    adapter.receive(1, 0.3)
    assert commands(sent) == []
    adapter.settle(deliveries[6], ACK)
    assert commands(sent) == ["ACK"]
    until_left(stomp_url, name, "h", "i", "j")


def test_dups_ok_acknowledges_a_topic_at_half_of_the_prefetch(make, stomp_url, name, monkeypatch):
    adapter = make(f"/topic/{name}", ack="dups_ok", prefetch=10, optimize_ack_timeout_s=1000.0)
    adapter.publish(Message(f"/topic/{name}", id="0"))
    deliveries = receive(adapter, 1)
    for number in range(1, 6):
        adapter.publish(Message(f"/topic/{name}", id=str(number)))
    deliveries += receive(adapter, 5)
    sent = frames_sent_by(adapter, monkeypatch)
    for delivery in deliveries[:5]:
        assert commands(sent) == []
        adapter.settle(delivery, ACK)
    assert commands(sent) == ["ACK"]


def test_a_group_that_is_not_full_is_acknowledged_after_a_while(make, stomp_url, name):
    adapter = make(ack="auto", optimize_acknowledge=True, optimize_ack_timeout_s=0.5)
    send(stomp_url, name, "a", "b")
    for delivery in receive(adapter, 2):
        adapter.settle(delivery, ACK)
    assert left(stomp_url, name) == ["a", "b"]
    adapter.receive(1, 0.8)
    until_left(stomp_url, name)


def test_transacted_acknowledgements_and_copies_take_effect_in_one_commit(make, stomp_url, name, monkeypatch):
    adapter = make(ack="transacted")
    send(stomp_url, name, "a", "b", "c")
    first, second, third = receive(adapter, 3)
    sent = frames_sent_by(adapter, monkeypatch)
    adapter.settle(second, Result(Outcome.DEAD, error=ValueError("no")))
    confirmed(adapter)
    adapter.settle(third, ACK)
    assert commands(sent) == []
    adapter.settle(first, ACK)
    adapter.receive(1, 0.1)
    assert commands(sent) == ["BEGIN", "SEND", "ACK", "COMMIT"]
    until_left(stomp_url, name)
    until_left(stomp_url, f"{name}.dead", "b")


def test_with_receipts_an_acknowledgement_is_done_when_settle_returns(make, stomp_url, name):
    adapter = make(receipts=True)
    send(stomp_url, name, "a")
    (delivery,) = receive(adapter, 1)
    adapter.settle(delivery, ACK)
    assert left(stomp_url, name) == []


def test_the_broker_sends_no_more_ahead_than_the_prefetch(make, stomp_url, name):
    first = make(prefetch=2)
    send(stomp_url, name, *"abcde")
    mine = receive(first, 2)
    second = make(prefetch=10)
    assert ids(mine + receive(second, 3)) == list("abcde")
    assert first.receive(1, 0.2) == []
