"""Brokers that hang up, do not answer, or are not there, and relays that lose their leases."""

import threading
import time

import pytest
import sqlalchemy as sa

from idempotent.observe import Observer
from idempotent.outbox.relays.destination import _MOST_WAVES
from tests.outbox.picky import Picky, relay, until
from tests.support.logs import events, logged


class HangsUp(Picky):
    """The whole batch is unanswered if it has one of these."""

    def publish_many(self, messages):
        if any(message.body.decode() in self.refuses for message in messages):
            error = self.error
            raise error
        super().publish_many(messages)


@pytest.mark.parametrize("error", [TimeoutError("a bug"), ValueError("another")])
def test_a_message_at_which_the_broker_hangs_up_is_held_and_the_others_go_on(outbox, send, waiting, error):
    adapter = HangsUp(refuses=["poison"])
    adapter.error = error
    send("a 0", "poison", "b 0", order_key=None)
    for number in range(3):
        send(f"k {number}", order_key="k")
    with relay(outbox, adapter):
        until(lambda: {"a 0", "b 0", "k 0", "k 1", "k 2"} <= set(adapter.bodies))
        for number in range(10):
            send(f"later {number}")
            until(lambda number=number: f"later {number}" in adapter.bodies)
        until(lambda: outbox.store.stats().lanes == 1)
        adapter.refuses.clear()
        until(lambda: not waiting())
    assert [body for body in adapter.bodies if body[0] == "k"] == ["k 0", "k 1", "k 2"]


def test_a_broker_that_hangs_up_for_a_while_gets_all_in_their_order(outbox, send, waiting):
    adapter = HangsUp(refuses=["k 0"])
    adapter.error = ConnectionError("down")
    for number in range(30):
        send(f"k {number}", order_key="k")
    with relay(outbox, adapter):
        time.sleep(1.0)
        assert adapter.bodies == []
        adapter.refuses.clear()
        until(lambda: not waiting())
    assert adapter.bodies == [f"k {number}" for number in range(30)]


@pytest.mark.slow
def test_what_follows_an_unanswered_message_waits_although_the_broker_answers_again(outbox, send, waiting):
    adapter = Picky(silent_about=["0"])

    class Slow(Observer):
        """Between two batches the broker's pause ends."""

        def relayed(self, outbox, published, refused):
            adapter.silent_about.clear()
            time.sleep(0.5)

    send(*range(6), order_key="k")
    with relay(outbox, adapter, observers=[Slow()]):
        until(lambda: not waiting())
    assert adapter.bodies == [str(number) for number in range(6)]


def test_a_row_that_cannot_be_read_is_held_alone(outbox, send, waiting, sql_store, tables):
    send("bad")
    with sql_store.admin_engine.begin() as connection:
        connection.execute(tables.waiting.update().values(headers=b"{not json"))
    send("good")
    adapter = Picky()
    with relay(outbox, adapter):
        until(lambda: adapter.bodies == ["good"] and outbox.store.stats().lanes == 1)
    assert waiting() == ["bad"]


def test_a_relay_whose_lease_has_ended_shares_the_buckets_again(outbox, send, waiting, sql_store, tables):
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite is for one process")
    one, two = (relay(outbox, Picky(), lease_s=3.0) for _ in range(2))

    def shares():
        return sorted(len(each._destinations[0].leases._buckets) for each in (one, two))

    with one, two:
        until(lambda: shares() == [32, 32])
        with sql_store.admin_engine.begin() as connection:
            # As after a pause: its leases, and its own row, have ended; another relay has removed the row.
            owner = one._destinations[0].leases._owner
            connection.execute(sa.delete(tables.leases).where(tables.leases.c.owner == owner))
        until(lambda: outbox.store.stats().relays == 2)
        until(lambda: shares() == [32, 32])
        send("1")
        until(lambda: not waiting())


@pytest.mark.slow
def test_a_new_relay_does_not_publish_what_waits_behind_a_held_message(outbox, send, waiting, sql_store):
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite is for one process")
    keys = [f"k{number}" for number in range(20)]
    first, second = Picky(refuses=[f"{key} 0" for key in keys]), Picky(refuses=[f"{key} 0" for key in keys])
    for key in keys:
        send(f"{key} 0", order_key=key)
    old = relay(outbox, first)
    with old, relay(outbox, second):
        until(lambda: outbox.store.stats().lanes == 20)
        old.stop()
        for key in keys:
            send(f"{key} 1", order_key=key)
        send("other")
        until(lambda: "other" in first.bodies + second.bodies)
        until(lambda: outbox.store.stats().held == 40)
        assert set(first.bodies + second.bodies) == {"other"}
        first.refuses.clear(), second.refuses.clear()
        until(lambda: not waiting())


def test_one_order_key_does_not_keep_the_others_waiting(outbox, send, waiting):
    sent = threading.Event()

    class Slow(Picky):
        def publish_many(self, messages):
            super().publish_many(messages)
            assert sent.wait(20)

    adapter = Slow()
    for _ in range(20):
        send(*(f"hot {number}" for number in range(20)), order_key="hot")
    with relay(outbox, adapter):
        until(lambda: adapter.bodies)
        send("other")
        sent.set()
        until(lambda: not waiting())
    assert adapter.bodies.index("other") < 400
    assert _MOST_WAVES < 100


def test_a_relay_that_is_left_publishes_what_has_committed(outbox, send, waiting):
    adapter = Picky()
    with relay(outbox, adapter, poll_s=5.0):
        until(lambda: outbox.store.stats().relays == 1)
        send(*range(50))
    assert waiting() == []
    assert len(adapter.published) == 50


def test_messages_for_a_broker_without_a_publisher_are_named(outbox, send, waiting, caplog):
    send("1", to="nowhere")
    with relay(outbox, Picky()):
        until(lambda: "relay_has_no_publisher" in events(caplog))
    (record,) = logged(caplog, "relay_has_no_publisher")
    assert record.destination == "nowhere"
    assert waiting() == ["1"]
