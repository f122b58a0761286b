"""StompAdapter when its broker or its network fails."""

import socket
import threading
import time

import pytest

from idempotent import Message, Outcome, Registry, Result, Worker
from idempotent.adapters.activemq import StompAdapter
from idempotent.adapters.activemq.frames import Frame, send_frame
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError
from idempotent.policy import Backoff
from tests.adapters.activemq.member import (
    DEADLINE_S,
    QUICK,
    commands,
    frames_sent_by,
    left,
    receive,
    send,
    until_left,
)
from tests.adapters.activemq.opening import ACK, IN_TIME_S, opened, receives_nothing_in_time, until, with_user
from tests.support.services import PrivateActiveMq


@pytest.mark.slow
@pytest.mark.parametrize("ack", ["individual", "dups_ok", "transacted"])
def test_a_broker_killed_and_restarted_in_the_middle_costs_no_effect_and_repeats_none(spare, name, ack):
    server = spare(PrivateActiveMq)
    registry, effects = Registry(), []

    @registry.consumer(name, checker=MemoryChecker())
    def handle(message):
        time.sleep(0.005)
        effects.append(message.id)

    def outages():
        until(lambda: len(effects) > 50)
        server.kill()
        server.start()
        until(lambda: len(effects) > 150)
        server.restart()
        until(lambda: len(effects) >= 300)
        time.sleep(0.5)

    send(server.url, name, *map(str, range(300)))
    adapter = StompAdapter(server.url, backoff=QUICK, ack=ack)
    worker = Worker(registry, adapter, concurrency=3, gc_interval_s=None)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        outages()
    finally:
        worker.stop()
        thread.join(DEADLINE_S)
    assert sorted(effects, key=int) == list(map(str, range(300)))
    assert left(server.url, name) == []


@pytest.mark.slow
def test_a_broker_that_is_down_at_the_start_is_waited_for_call_by_call(spare, name):
    server = spare(PrivateActiveMq)
    server.stop()
    with opened(server.url, name) as adapter:
        for timeout_s in (0.0, 0.3, 0.0):
            began = time.monotonic()
            assert adapter.receive(1, timeout_s) == []
            assert time.monotonic() - began < IN_TIME_S
        server.start()
        send(server.url, name, "a")
        adapter.settle(receive(adapter, 1)[0], ACK)
    assert left(server.url, name) == []


def test_a_broker_that_does_not_answer_holds_nobody_up_and_is_found_again(spare, name):
    server = spare(PrivateActiveMq)
    with opened(server.url, name, heartbeat_s=0.4, receipt_timeout_s=1.0) as adapter:
        send(server.url, name, "a")
        (old,) = receive(adapter, 1)
        server.pause()
        until(lambda: receives_nothing_in_time(adapter) and adapter._epoch is None)
        for _ in range(10):
            receives_nothing_in_time(adapter)
        assert adapter._epoch is None
        adapter.settle(old, ACK)
        assert adapter.stale_settlements == 1
        server.resume()
        (again,) = receive(adapter, 1)
        assert (again.message.id, again.message.redelivered) == ("a", True)
        adapter.settle(again, ACK)
    until_left(server.url, name)


def test_a_settlement_that_is_not_confirmed_in_time_counts_as_lost(spare, name):
    server = spare(PrivateActiveMq)
    with opened(server.url, name, ack="transacted", receipt_timeout_s=0.5) as adapter:
        send(server.url, name, "a")
        (delivery,) = receive(adapter, 1)
        server.pause()
        adapter.settle(delivery, Result(Outcome.DEAD))
        server.resume()
        assert adapter.stale_settlements == 1
        (again,) = receive(adapter, 1)
        assert again.message.id == "a"


@pytest.mark.slow
@pytest.mark.parametrize("told", [False, None], ids=["told", "found out"])
def test_without_a_scheduler_failed_messages_wait_here_unacknowledged(spare, name, told):
    server = spare(PrivateActiveMq, "no-scheduler")
    with opened(server.url, name, scheduler=told) as adapter:
        for key in ("a", "b"):
            send(server.url, name, key)
            (delivery,) = receive(adapter, 1)
            adapter.settle(delivery, Result(Outcome.FAILED, retry_after_s=1.0))
            failed_at = time.monotonic()
            (again,) = receive(adapter, 1)
            assert time.monotonic() - failed_at > 0.8
            assert again.message.id == key
            assert left(server.url, name) == [key]
            adapter.settle(again, ACK)
            adapter.settle(delivery, ACK)
        assert adapter.stale_settlements == 2
    assert left(server.url, name) == []


@pytest.mark.slow
def test_after_an_abort_the_same_frames_can_be_settled_again(spare, name, monkeypatch):
    server = spare(PrivateActiveMq, "accounts")
    with opened(with_user(server.url), name, ack="transacted") as adapter:
        adapter.publish(Message(name, id="a"))
        (delivery,) = receive(adapter, 1)
        connection = adapter._epoch.connection
        sent = frames_sent_by(adapter, monkeypatch)
        forbidden = send_frame("/queue/locked.graves", b"", {})
        with pytest.raises(AdapterError, match="not authorized"):
            connection.transact(
                [forbidden, Frame("ACK", {"id": delivery.token.held.ack_id})], "a transaction"
            )
        assert commands(sent) == ["BEGIN", "SEND", "ACK", "ABORT"]
        assert adapter.receive(1, 0.2) == [], "the broker does not deliver it again by itself"
        adapter.settle(delivery, ACK)
        adapter.receive(1, 0.2)
    with opened(with_user(server.url), name) as second:
        assert second.receive(1, 0.5) == []


def test_reconnecting_waits_longer_and_longer(name):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with opened(f"stomp://127.0.0.1:{port}", name, backoff=Backoff(initial_s=0.3, maximum_s=5.0)) as adapter:
        adapter.receive(1, 1.0)
        assert 1 <= adapter._line._reconnecting._failures <= 4
