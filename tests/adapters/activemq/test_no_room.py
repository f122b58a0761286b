"""StompAdapter and copies that ActiveMQ does not take: larger than it allows, or when its store is full."""

import socket
import time
from contextlib import contextmanager, suppress

import pytest

from idempotent import Outcome, Registry, Result
from idempotent.adapters.activemq.copying import CopyBackoff
from idempotent.checkers import MemoryChecker
from idempotent.testing.adapter_contract import until
from tests.adapters.activemq.member import left, receive, send, until_left, work_until
from tests.adapters.activemq.opening import ACK, opened
from tests.adapters.activemq.stomp_client import StompClient
from tests.support.logs import logged
from tests.support.services import PrivateActiveMq
from tests.support.services.activemq import MAX_FRAME_BYTES

# The original just fits, and our headers make it larger.
LARGE = bytes(MAX_FRAME_BYTES - 200)
DEAD = Result(Outcome.DEAD, error=ValueError("no"))


@pytest.mark.parametrize("ack", ["individual", "dups_ok", "transacted"])
def test_a_dead_letter_that_is_too_large_stays_and_the_others_go_on(spare, name, ack, caplog):
    server = spare(PrivateActiveMq)
    registry, effects = Registry(), []

    @registry.consumer(name, checker=MemoryChecker(), max_attempts=1)
    def handle(message):
        effects.append(message.id)
        if message.id == "large":
            raise ValueError("poison")

    send(server.url, name, "large", body=LARGE)
    send(server.url, name, *map(str, range(20)))
    work_until(registry, server.url, lambda: len(effects) == 21, ack=ack)
    assert sorted(effects) == sorted([*map(str, range(20)), "large"])
    assert "large" in left(server.url, name)
    assert left(server.url, f"{name}.dead") == []
    assert any("maxFrameSize" in getattr(record, "error", "") for record in caplog.records)


def test_what_failed_and_is_too_large_to_be_copied_waits_here(spare, name):
    server = spare(PrivateActiveMq)
    with opened(server.url, name) as adapter:
        send(server.url, name, "large", body=LARGE)
        calls = 0
        deadline = time.monotonic() + 20.0
        while calls < 3:
            assert time.monotonic() < deadline
            for delivery in adapter.receive(1, 0.1):
                calls += 1
                adapter.settle(delivery, Result(Outcome.FAILED, error=ValueError(), retry_after_s=0.1))
        assert adapter.stale_settlements == 0, "its copy costs no connection that has deliveries"
        assert left(server.url, name) == ["large"]


@pytest.mark.slow
def test_it_is_a_dead_letter_as_soon_as_the_broker_takes_it(private_activemq, name):
    server = private_activemq()
    with opened(server.url, name) as adapter:
        send(server.url, name, "large", body=LARGE)
        adapter.settle(receive(adapter, 1)[0], DEAD)
        until(lambda: adapter.receive(1, 0.1) or adapter.waits_for, "a name for the trouble")
        assert str(adapter.waits_for).startswith(f"/queue/{name}.dead to take 1 copy: ")
        server.stop()
        configuration = server.folder / "conf" / "activemq.xml"
        text = configuration.read_text()
        configuration.write_text(text.replace(str(MAX_FRAME_BYTES), str(2 * MAX_FRAME_BYTES)))
        server.start()
        deadline = time.monotonic() + 20.0
        while not left(server.url, f"{name}.dead"):
            assert time.monotonic() < deadline
            for delivery in adapter.receive(1, 0.1):
                adapter.settle(delivery, DEAD)
        assert adapter.waits_for is None
    until_left(server.url, f"{name}.dead", "large")
    until_left(server.url, name)


def test_the_waits_between_copies_grow_until_one_is_taken():
    now = 100.0
    losses = CopyBackoff(clock=lambda: now)
    assert losses.wait_s("1") == 0
    for wait_s in (1, 2, 4, 8):
        losses.failed({"1": "/queue/dead"}, ValueError())
        assert losses.wait_s("1") == wait_s
        assert losses.wait_s("2") == 0
        now += wait_s
        assert losses.wait_s("1") == 0
    losses.copied("1")
    losses.failed({"1": "/queue/dead"}, ValueError())
    assert losses.wait_s("1") == 1


# A full store: the broker stops reading from each connection that publishes a persistent message.


@contextmanager
def full(url, name):
    """Meanwhile its store is full."""
    filler = StompClient(url)
    filler._socket.settimeout(1.5)
    place = f"/queue/{name}-filling"
    with suppress(socket.timeout):
        while True:
            filler.publish(place, bytes(MAX_FRAME_BYTES - 1000))
    yield
    emptying = StompClient(url)
    emptying.send("SUBSCRIBE", {"id": "0", "destination": place, "ack": "auto"})
    assert emptying.read().command == "MESSAGE"
    time.sleep(1)
    emptying.close()
    filler.close()


@pytest.mark.parametrize("ack", ["individual", pytest.param("client", marks=pytest.mark.slow)])
def test_what_needs_no_copy_is_acknowledged_while_the_copies_wait_for_room(spare, name, caplog, ack):
    server = spare(PrivateActiveMq, "small-store")
    done = []
    registry = Registry()

    @registry.consumer(name, checker=MemoryChecker(), max_attempts=1)
    def handle(message):
        done.append(message.id)
        if message.id == "poison":
            raise ValueError("no")

    send(server.url, name, "poison", *map(str, range(20)))
    with full(server.url, name):
        began = time.monotonic()
        expected = ["poison"] if ack == "individual" else ["poison", *map(str, range(20))]
        work_until(
            registry, server.url, lambda: len(done) == 21 and left(server.url, name) == expected, ack=ack
        )
        assert time.monotonic() - began < 30, "the copy held up the others"
        assert not logged(caplog, "broker_connection_lost")
    work_until(registry, server.url, lambda: left(server.url, name) == [], ack=ack)
    assert set(left(server.url, f"{name}.dead")) == {"poison"}


@pytest.mark.slow
def test_a_transaction_that_finds_no_room_says_so(spare, name, caplog):
    server = spare(PrivateActiveMq, "small-store")
    send(server.url, name, "poison")
    with full(server.url, name), opened(server.url, name, ack="transacted", receipt_timeout_s=1.0) as adapter:
        adapter.settle(receive(adapter, 1)[0], DEAD)
        (failed,) = logged(caplog, "copy_failed")
        assert "store full?" in failed.error
        assert "maxFrameSize" not in failed.error
    with opened(server.url, name) as adapter:
        adapter.settle(receive(adapter, 1)[0], ACK)
