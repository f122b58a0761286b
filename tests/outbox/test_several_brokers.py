"""Several brokers, and several relays in one process: none waits for another one."""

import logging
import threading

import pytest

from idempotent import Registry, Worker
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.errors import ConfigurationError
from tests.outbox.picky import Picky, Silent, relay, until
from tests.support.logs import events, logged


def test_a_silent_broker_does_not_hold_up_another_one(outbox, send, waiting):
    silent, other = Silent(), Picky()
    with relay(outbox, {"": silent, "other": other}):
        send("1")
        assert silent.asked.wait(60)
        for number in range(3):
            send(number, to="other", order_key="k")
            until(lambda number=number: len(other.bodies) == number + 1)
        until(lambda: waiting() == ["1"])
        silent.answer.set()
        until(lambda: not waiting())


def test_relays_with_different_brokers_publish_what_is_for_theirs(outbox, send, waiting, sql_store):
    adapters = {name: Picky() for name in ("", "a", "b")}
    for name in adapters:
        send(*range(50), to=name)
        send("later", to=name, delay_s=0.5)
    with relay(outbox, {"": adapters[""], "a": adapters["a"]}):
        until(lambda: len(adapters["a"].bodies) >= 50)
        with relay(outbox, {"b": adapters["b"]}):
            until(lambda: all("later" in adapter.bodies for adapter in adapters.values()))
            until(lambda: not waiting())
            assert outbox.store.stats().relays == 2
    assert {len(adapter.bodies) for adapter in adapters.values()} == {51}


def test_what_is_held_for_one_broker_is_not_tried_by_the_relay_of_another(outbox, send, waiting):
    one, other = Picky(refuses=["1"]), Picky()
    with relay(outbox, {"one": one}):
        send("1", "2", to="one", order_key="k")
        until(lambda: outbox.store.stats().held == 2)
    with relay(outbox, {"other": other}):
        send("3", to="other", order_key="k")
        until(lambda: other.bodies == ["3"])
        until(lambda: outbox.store.stats().relays == 1)
    assert outbox.store.stats().held == 2
    one.refuses.clear()
    with relay(outbox, {"one": one}):
        until(lambda: not waiting())
    assert (one.bodies, other.bodies) == (["1", "2"], ["3"])


def test_a_commit_wakes_every_relay_of_the_process(outbox, send, waiting, sql_store):
    if sql_store.kind == "postgres":
        pytest.skip("there the relays listen, too")
    one, other = Picky(), Picky()
    with relay(outbox, {"one": one}, poll_s=600.0), relay(outbox, {"other": other}, poll_s=600.0):
        for number in range(1, 30):
            send(number, to="one")
            send(number, to="other")
            until(lambda number=number: len(one.bodies) == len(other.bodies) == number)


@pytest.mark.slow
def test_a_broker_that_hangs_is_told_and_shown(outbox, send, waiting, tmp_path, caplog):
    silent, path = Silent(), tmp_path / "health"
    with caplog.at_level(logging.WARNING, "idempotent.outbox"), relay(outbox, silent, health_file=path):
        until(lambda: path.exists() and path.read_text() == "ready\n")
        send("1")
        until(lambda: path.read_text() == "connecting\n")
        (record,) = logged(caplog, "relay_hangs")
        assert (record.destination, record.server) == ("", "broker")
        silent.answer.set()
        until(lambda: path.read_text() == "ready\n")
        until(lambda: "relay_goes_on" in events(caplog))


def test_a_worker_and_a_relay_need_adapters_of_their_own(outbox):
    adapter = MemoryAdapter(MemoryBroker())
    with pytest.raises(ConfigurationError, match="an adapter of its own"):
        Worker(Registry(), adapter, services=[relay(outbox, adapter)])


def test_an_interrupted_relay_does_not_wait_for_a_broker(outbox, send, waiting, caplog):
    silent = Silent()

    def interrupt():
        with relay(outbox, silent):
            send("1")
            assert silent.asked.wait(60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    (record,) = logged(caplog, "relay_abandoned")
    assert record.waited_s == 0
    silent.answer.set()
    until(lambda: not waiting())
    # The thread of the interrupted relay releases its buckets on a new connection; the outbox must be closed later.
    until(lambda: not any(thread.name == "idempotent-relay" for thread in threading.enumerate()))
