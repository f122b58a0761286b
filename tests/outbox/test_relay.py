"""A relay publishes what has committed, in the order of each order key, and deletes what the broker has confirmed."""

import itertools
import logging
import threading
import time
from collections import defaultdict
from contextlib import closing

import pytest
import sqlalchemy as sa

from idempotent import Message
from idempotent.errors import ConfigurationError
from idempotent.outbox import Outbox, Relay
from idempotent.outbox.entries import bucket_of, lane_of
from tests.outbox.picky import Picky, Silent, relay, until
from tests.support.logs import events, logged


def test_what_has_committed_is_published_and_deleted(outbox, send, waiting):
    adapter = Picky()
    send(*range(700))
    with relay(outbox, adapter):
        until(lambda: len(adapter.published) >= 700)
        send("late")
        until(lambda: "late" in adapter.bodies)
        until(lambda: not waiting())
    assert len(adapter.published) == len(set(adapter.published)) == 701
    assert adapter.batches[0] > 100


def test_messages_of_an_order_key_are_published_in_the_order_of_their_rows(outbox, send, waiting):
    adapter = Picky()
    for number in range(40):
        for key in "abc":
            send(f"{key} {number}", order_key=key)
    with relay(outbox, adapter, batch_size=50):
        until(lambda: not waiting())
    by_key = defaultdict(list)
    for body in adapter.bodies:
        key, number = body.split()
        by_key[key].append(int(number))
    assert by_key == {key: list(range(40)) for key in "abc"}


@pytest.mark.slow
def test_a_message_whose_row_is_older_than_its_commit_is_published(outbox, send, waiting, sql_store):
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    adapter = Picky()
    with relay(outbox, adapter):
        with sql_store.admin_engine.connect() as slow:
            for number in range(3):
                outbox.send(slow, Message("invoices", f"slow {number}".encode()), order_key="slow")
            send(*range(10))
            until(lambda: len(adapter.bodies) == 10)
            slow.commit()
        until(lambda: not waiting())
    assert adapter.bodies[10:] == [f"slow {number}" for number in range(3)]


@pytest.mark.parametrize("sql_store", ["mysql", "postgres"], indirect=True)
def test_a_key_under_a_lock_is_in_order_although_its_ids_commit_after_later_ones(
    outbox, send, waiting, sql_store
):
    """A relay that goes on behind the last id that it has seen would publish 7 and not see 5: docs/decisions/0036."""
    adapter = Picky()
    names = (f"other {number}" for number in itertools.count())
    with relay(outbox, adapter):
        for number in range(0, 40, 2):
            with sql_store.admin_engine.connect() as slow:
                outbox.send(slow, Message("invoices", f"{number}".encode()), order_key="locked")
                other = next(name for name in names if bucket(name) == bucket("locked"))
                send(other, order_key=other)
                until(lambda other=other: other in adapter.bodies)
                slow.commit()
            send(number + 1, order_key="locked")
        until(lambda: not waiting())
    assert [body for body in adapter.bodies if body.isdigit()] == [str(number) for number in range(40)]


def bucket(order_key):
    return bucket_of(lane_of("", order_key))


def test_a_delayed_message_is_published_when_its_time_has_come(outbox, send, waiting):
    adapter = Picky()
    send("delayed", delay_s=2.0)
    send("at once")
    began = time.monotonic()
    with relay(outbox, adapter):
        until(lambda: len(adapter.published) == 2)
    assert adapter.bodies == ["at once", "delayed"]
    assert time.monotonic() - began > 1.5
    assert outbox.store.stats().delayed == 0


def test_a_refused_message_holds_its_order_key_and_no_other(outbox, send, waiting):
    adapter = Picky(refuses=["a 1"])
    for number in range(4):
        send(f"a {number}", order_key="a")
        send(f"b {number}", order_key="b")
        send(f"none {number}")
    with relay(outbox, adapter):
        until(lambda: {"b 3", "none 3"} <= set(adapter.bodies))
        send("a 4", order_key="a")
        until(lambda: outbox.store.stats().held == 4)
        stats = outbox.store.stats()
        assert (stats.waiting, stats.lanes, stats.relays) == (0, 1, 1)
        assert [body for body in adapter.bodies if body[0] == "a"] == ["a 0"]
        adapter.refuses.clear()
        until(lambda: not waiting())
    assert [body for body in adapter.bodies if body[0] == "a"] == [f"a {number}" for number in range(5)]
    assert outbox.store.stats().lanes == 0


@pytest.mark.parametrize("on_parked", ["block", "skip"])
@pytest.mark.parametrize("subject", ["other", "invoices"])
def test_without_an_order_key_nothing_waits_for_a_message_with_the_same_id(
    outbox, sql_store, on_parked, subject
):
    adapter = Picky(refuses=["refused"])

    def send(body, subject):
        with sql_store.admin_engine.begin() as connection:
            outbox.send(connection, Message(subject, body.encode(), id="m"))

    send("refused", "invoices")
    with relay(outbox, adapter, on_parked=on_parked):
        until(lambda: outbox.store.stats().held == 1)
        send("goes", subject)
        until(lambda: "goes" in adapter.bodies)
        adapter.refuses.clear()
        until(lambda: outbox.store.stats().held == 0)
    assert sorted(adapter.bodies) == ["goes", "refused"]


@pytest.mark.parametrize("sql_store", ["sqlite"], indirect=True)
@pytest.mark.parametrize("on_parked", ["block", "skip"])
def test_refused_messages_without_an_order_key_are_set_aside_together(sql_store, tables, send, on_parked):
    said = []
    engine = sql_store.engine()
    sa.event.listen(engine, "connect", lambda raw, _: raw.set_trace_callback(said.append))
    send(*range(100))
    with closing(Outbox(engine, table=sql_store.table)) as outbox:
        with relay(outbox, Picky(refuses=map(str, range(100))), on_parked=on_parked):
            until(lambda: outbox.store.stats().held == 100)
        moved = [each for each in said if "bucket = -1 - bucket" in each and "bucket >= 0" in each]
    assert len(moved) == 1


def test_with_skip_a_refused_message_waits_alone(outbox, send, waiting):
    adapter = Picky(refuses=["1"])
    for number in range(4):
        send(number, order_key="a")
    with relay(outbox, adapter, on_parked="skip"):
        until(lambda: adapter.bodies == ["0", "2", "3"])
        adapter.refuses.clear()
        until(lambda: adapter.bodies == ["0", "2", "3", "1"])
        until(lambda: not waiting())


def test_what_the_broker_did_not_answer_about_is_sent_again_before_what_follows(outbox, send, waiting):
    adapter = Picky(silent_about=["1"])
    for number in range(3):
        send(number, order_key="a")
    with relay(outbox, adapter):
        until(lambda: adapter.bodies == ["0"] and len(adapter.batches) > 3)
        adapter.silent_about.clear()
        until(lambda: not waiting())
    assert adapter.bodies == ["0", "1", "2"]


def test_a_broker_that_is_away_does_not_hold_up_another(outbox, send, waiting):
    good, away = Picky(), Picky(silent_about=["no"])
    for _ in range(30):
        send("no", to="away")
    send("yes", to="good")
    with relay(outbox, {"good": good, "away": away}):
        until(lambda: good.bodies == ["yes"])
        until(lambda: len(waiting()) == 30)
        away.silent_about.clear()
        until(lambda: not waiting())
    assert len(set(away.published)) == 30


def test_a_row_with_the_number_of_a_published_one_is_not_deleted(outbox, send, waiting, tables, sql_store):
    """As after TRUNCATE ... RESTART IDENTITY, or when a replica takes over that had not got the last commits."""
    silent = Silent()
    with relay(outbox, silent):
        send("first")
        assert silent.asked.wait(60)
        with sql_store.admin_engine.begin() as connection:
            number = connection.execute(sa.select(tables.waiting.c.id)).scalar_one()
            connection.execute(sa.delete(tables.waiting))
        send("other")
        with sql_store.admin_engine.begin() as connection:
            connection.execute(sa.update(tables.waiting).values(id=number))
        silent.answer.set()
        until(lambda: not waiting())
    assert silent.bodies == ["first", "other"]


@pytest.mark.parametrize("sql_store", ["postgres", "mysql"], indirect=True)
def test_a_batch_is_published_while_the_one_before_is_deleted(outbox, send, waiting, tables, sql_store):
    first = sa.select(tables.waiting.c.id).order_by(tables.waiting.c.id).limit(1)
    with sql_store.admin_engine.connect() as other:

        class Locked(Picky):
            def publish_many(self, messages):
                if not self.published:
                    other.execute(first.with_for_update())
                super().publish_many(messages)

        adapter = Locked()
        send(*range(6))
        with relay(outbox, adapter, batch_size=2):
            until(lambda: len(adapter.bodies) == 4)
            time.sleep(1.0)
            assert len(adapter.bodies) == 4  # and no third batch
            other.rollback()
            until(lambda: not waiting())
    assert sorted(adapter.bodies) == list("012345")


def test_small_batches_publish_all_that_committed_before_the_stop(outbox, send, waiting):
    class Stopping(Picky):
        def publish_many(self, messages):
            super().publish_many(messages)
            if len(self.batches) == 1:
                send(*range(1, 7))
                stopping.stop()

    send(0)
    with relay(outbox, Stopping(), batch_size=2) as stopping:
        until(stopping._destinations[0]._stopping.is_set)
    assert waiting() == []


@pytest.mark.slow
@pytest.mark.parametrize("sql_store", ["postgres", "mysql"], indirect=True)
def test_a_relay_that_stops_keeps_its_buckets_until_it_has_deleted(outbox, send, waiting, tables, sql_store):
    """Its two seconds end between two batches of its last read, while the database does not answer to a deletion."""
    stopped, locked = threading.Event(), threading.Event()
    with sql_store.admin_engine.connect() as other:

        class Slow(Picky):
            def publish_many(self, messages):
                super().publish_many(messages)
                if len(self.batches) == 1:
                    assert stopped.wait(60)
                    send(*range(1, 13))
                elif len(self.batches) == 3:
                    other.execute(sa.select(tables.waiting.c.id).with_for_update())
                    locked.set()
                    time.sleep(2.1)

        adapter, next_adapter = Slow(), Picky()
        send(0)
        with relay(outbox, adapter, batch_size=2) as stopping:
            until(lambda: adapter.batches)
            stopping.stop()
            stopped.set()
            assert locked.wait(60)
            with relay(outbox, next_adapter, batch_size=2):
                time.sleep(3.0)
                assert next_adapter.bodies == []
                other.rollback()
                until(lambda: not waiting())
    assert next_adapter.bodies
    assert sorted(map(int, adapter.bodies + next_adapter.bodies)) == list(range(13))


@pytest.mark.slow
def test_relays_share_the_buckets_as_they_come_and_go(outbox, send, waiting, sql_store, caplog):
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite is for one process")
    adapters = [Picky() for _ in range(3)]
    relays = [relay(outbox, adapter, lease_s=3.0) for adapter in adapters]
    for number in range(300):
        send(number)
    with relays[0]:
        until(lambda: adapters[0].published)
        with relays[1], relays[2]:

            def shares():
                return [len(each._destinations[0].leases._buckets) for each in relays]

            until(lambda: max(shares()) <= 22 and sum(shares()) == 64)
            for number in range(300, 600):
                send(number)
            until(lambda: not waiting())
        until(lambda: len(relays[0]._destinations[0].leases._buckets) == 64)
        send("after")
        until(lambda: not waiting())
    published = [one for adapter in adapters for one in adapter.published]
    assert len(published) == len(set(published)) == 601
    assert all(adapter.published for adapter in adapters)
    assert "relay_leases_ended" not in events(caplog)


def test_buckets_that_a_relay_of_an_older_version_gave_back_are_not_told_as_ended_leases(
    outbox, sql_store, tables, caplog
):
    # It left the length of the lease.
    rows = [
        {"destination": "", "slot": slot, "owner": b"o" * 16, "lease_us": 15_000_000, "lease_until": 0}
        for slot in range(64)
    ]
    with sql_store.admin_engine.begin() as connection:
        connection.execute(tables.leases.insert(), rows)
    running = relay(outbox, Picky())
    with running:
        until(lambda: len(running._destinations[0].leases._buckets) == 64)
    assert "relay_leases_ended" not in events(caplog)


def test_a_relay_that_died_is_replaced_when_its_lease_has_ended(outbox, send, waiting, caplog):
    caplog.set_level(logging.INFO)
    dead = relay(outbox, Picky(), lease_s=2.0)
    dead._destinations[0].leases._look(time.monotonic())
    assert len(dead._destinations[0].leases._buckets) == 64
    send("1")
    adapter = Picky()
    with relay(outbox, adapter, lease_s=2.0):
        until(lambda: adapter.bodies == ["1"])
        ended = "relay_leases_ended"
        until(lambda: sum(each.buckets for each in logged(caplog, ended)) == 64)
    told = logged(caplog, "relay_buckets")
    assert [(each.buckets, bool(each.hint)) for each in told] == [(64, False), (0, True), (64, False)]
    ((_, left_s),) = told[1].others.items()
    assert 0 <= left_s <= 2
    said = [(each.event, each.relay) for each in caplog.records if each.event.startswith("relay_st")]
    assert [event for event, _ in said] == ["relay_started", "relay_stopping", "relay_stopped"]
    assert len({name for _, name in said}) == 1


def test_it_waits_for_its_tables_and_goes_on(outbox, send, waiting, tables, sql_store, caplog):
    adapter = Picky()
    made = tables.waiting.metadata
    made.drop_all(sql_store.admin_engine)
    with relay(outbox, adapter):
        until(lambda: "relay_waits" in events(caplog))
        made.create_all(sql_store.admin_engine)
        send("1")
        until(lambda: adapter.bodies == ["1"])
        until(lambda: "relay_goes_on" in events(caplog))


@pytest.mark.parametrize(
    ("publisher", "options", "error"),
    [
        ({}, {}, "at least one publisher"),
        (object(), {}, "publisher must be an adapter"),
        (None, {"batch_size": 0}, "batch_size"),
        (None, {"lease_s": 0}, "lease_s"),
        (None, {"on_parked": "drop"}, "on_parked must be one of 'block', 'skip'"),
    ],
)
def test_wrong_options_are_refused(outbox, publisher, options, error):
    with pytest.raises(ConfigurationError, match=error):
        Relay(outbox, Picky() if publisher is None else publisher, **options)


@pytest.mark.slow
def test_a_relay_that_runs_once_more_renews_its_leases(outbox, send, waiting):
    """The broker does not answer for three leases, and another relay looks for buckets to take over."""
    adapter, other_adapter = Silent(), Picky()
    again = relay(outbox, adapter, lease_s=1.0)
    with again:
        pass
    send(0)
    with again:
        assert adapter.asked.wait(60)
        with relay(outbox, other_adapter, lease_s=1.0):
            time.sleep(3.0)
            assert other_adapter.bodies == []
            adapter.answer.set()
            until(lambda: not waiting())
    assert adapter.bodies == ["0"]
