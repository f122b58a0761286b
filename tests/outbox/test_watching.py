"""What others see of a relay: measures, the health file, and errors at its start and while nothing waits."""

import logging
import secrets
import threading
import time

import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy.orm import Session

from idempotent import Message
from idempotent.adapters import adapter_from_url
from idempotent.errors import AdapterError, StoreError
from idempotent.observe import Observer, OutboxMeasures
from idempotent.observe.prometheus import IdempotentCollector
from idempotent.outbox.entries import BUCKETS
from idempotent.policy import Backoff
from tests.outbox.brokers import BROKERS
from tests.outbox.picky import Picky, relay, until
from tests.support.logs import events


class Notes(Observer):
    def __init__(self):
        self.measures, self.relays = [], []

    def measured(self, outbox, stats):
        self.measures.append((outbox, stats))

    def relayed(self, outbox, published, refused):
        self.relays.append((outbox, published, refused))


class Locked(Picky):
    """A broker that refuses connections while it is `locked`."""

    def __init__(self, locked=False):
        super().__init__()
        self.locked, self.opened, self.breaks = locked, 0, False

    def open(self, consumers):
        self.opened += 1
        if self.locked:
            raise AdapterError("wrong password")
        super().open(consumers)

    def receive(self, limit, timeout_s):
        if self.breaks:
            self.breaks = False
            raise AdapterError("connection lost")
        return super().receive(limit, timeout_s)


def test_an_observer_is_told_what_is_published_and_what_waits(outbox, send, waiting):
    notes, name = Notes(), f"{outbox.table}_outbox"
    send("good", "bad")
    send("later", delay_s=600)
    with relay(outbox, Picky(refuses=["bad"]), observers=[notes]):
        until(lambda: sum(published for _, published, _ in notes.relays) == 1)
        until(
            lambda: any(stats.held for _, stats in notes.measures) and sum(each[2] for each in notes.relays)
        )
    assert {name} == {each[0] for each in (*notes.measures, *notes.relays)}
    _, stats = notes.measures[-1]
    assert (stats.waiting, stats.held, stats.delayed, stats.relays) == (0, 1, 1, 1)
    assert stats.oldest_s is None  # what is held waits for a person, not for a relay


def test_a_delayed_message_waits_from_when_its_time_came(outbox, send, sql_store, tables):
    send("later", delay_s=600)
    with sql_store.admin_engine.begin() as connection:  # 600 seconds pass
        connection.execute(
            sa.text(
                f"UPDATE {tables.delayed.name} SET created_at = created_at - 600000000, due_at = due_at - 600000000"
            )
        )
    assert outbox.store.stats().oldest_s is None
    assert outbox.store.move_due(range(BUCKETS), "", 10) == 1
    stats = outbox.store.stats()
    assert (stats.waiting, stats.delayed) == (1, 0)
    assert 0 <= stats.oldest_s < 60


def test_prometheus_shows_the_outboxes_that_were_measured(outbox, send, waiting):
    measures, name = OutboxMeasures(), f"{outbox.table}_outbox"
    send("later", delay_s=600)
    send("good")
    with relay(outbox, Picky(), observers=[measures]):
        until(lambda: measures.stats() and measures.totals().get(name) == (1, 0))
    registry = CollectorRegistry()
    registry.register(IdempotentCollector(measures=measures))
    lines = generate_latest(registry).decode().splitlines()
    labels = f'outbox="{name}"'
    assert f'idempotent_outbox_messages{{{labels},state="delayed"}} 1.0' in lines
    assert f"idempotent_outbox_relays{{{labels}}} 1.0" in lines
    assert f"idempotent_outbox_published_total{{{labels}}} 1.0" in lines
    assert f"idempotent_outbox_refused_total{{{labels}}} 0.0" in lines


@pytest.mark.slow
def test_the_health_file_says_whether_broker_and_database_answer(
    outbox, sql_store, tables, waiting, tmp_path
):
    adapter, path = Locked(), tmp_path / "health"
    with relay(outbox, adapter, health_file=path):
        until(lambda: path.exists() and path.read_text() == "ready\n")
        adapter.locked = adapter.breaks = True
        until(lambda: path.read_text() == "connecting\n")
        adapter.locked = False
        until(lambda: path.read_text() == "ready\n")
        with sql_store.admin_engine.begin() as connection:
            connection.execute(
                sa.text(f"ALTER TABLE {tables.waiting.name} RENAME TO {tables.waiting.name}_2")
            )
        until(lambda: path.read_text() == "store\n")
        with sql_store.admin_engine.begin() as connection:
            connection.execute(
                sa.text(f"ALTER TABLE {tables.waiting.name}_2 RENAME TO {tables.waiting.name}")
            )
        until(lambda: path.read_text() == "ready\n")
    assert not path.exists()


def test_a_broker_that_refuses_the_connection_at_the_start_is_an_error(outbox, send, waiting):
    adapter = Locked(locked=True)
    send("kept")
    with pytest.raises(AdapterError, match="wrong password"), relay(outbox, adapter):
        pass
    assert waiting() == ["kept"]
    adapter.locked = False
    with relay(outbox, adapter):
        until(lambda: not waiting())


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("sql_store", ["sqlite"], indirect=True)
def test_a_relay_starts_without_a_warning(outbox, sql_store, waiting, request, broker, caplog):
    queue = f"starts_{secrets.token_hex(6)}"
    with BROKERS[broker](request) as place, caplog.at_level(logging.WARNING, "idempotent.outbox"):
        place.make(queue)
        with Session(sql_store.admin_engine) as session, session.begin():
            outbox.send(session, Message(queue, b"1"))
        with relay(outbox, adapter_from_url(place.relay_url)):
            until(lambda: not waiting())
    assert events(caplog) == []


def test_fail_fast_needs_the_tables(outbox, sql_store, tables):
    tables.held.drop(sql_store.admin_engine)
    with pytest.raises(StoreError), relay(outbox, Picky(), fail_fast=True):
        pass


@pytest.mark.slow
def test_a_password_that_changes_is_told_although_nothing_waits(outbox, tables, caplog):
    adapter = Locked()
    with caplog.at_level(logging.WARNING, "idempotent.outbox"), relay(outbox, adapter):
        until(lambda: adapter.opened)
        adapter.locked = adapter.breaks = True
        until(lambda: "relay_waits" in events(caplog))
        until(lambda: any("wrong password" in str(getattr(each, "error", "")) for each in caplog.records))
        assert adapter.opened < 10
        adapter.locked = False
        until(lambda: "relay_goes_on" in events(caplog))


def test_errors_of_one_cause_are_told_once_a_minute(outbox, send, waiting, caplog):
    class Silent(Picky):
        tries = 0

        def publish_many(self, messages):
            self.tries += 1
            raise AdapterError(f"no answer about {messages[0].id} on port {len(caplog.records)}")

    with caplog.at_level(logging.WARNING, "idempotent.outbox"), relay(outbox, adapter := Silent()):
        send(*range(3))
        until(lambda: outbox.store.stats().waiting == 3 and events(caplog))
        until(lambda: adapter.tries > 3)
    assert events(caplog).count("relay_waits") == 1


@pytest.mark.slow
def test_what_the_database_does_not_delete_is_not_published_again(outbox, sql_store, tables, send, waiting):
    adapter = Picky()
    no_delete(sql_store, tables.waiting.name)
    send("once", order_key="k")
    with relay(outbox, adapter):
        until(lambda: adapter.bodies)
        send("later", order_key="k")
        time.sleep(2.0)
        assert adapter.bodies == ["once"]
        delete_again(sql_store)
        until(lambda: not waiting())
    assert adapter.bodies == ["once", "later"]


@pytest.mark.slow
def test_batches_that_the_database_does_not_delete_are_not_published_again(
    outbox, sql_store, tables, send, waiting, caplog
):
    adapter = Picky()
    no_delete(sql_store, tables.waiting.name)
    send(*range(6))
    with relay(outbox, adapter, batch_size=2):
        until(lambda: "relay_waits" in events(caplog))
        time.sleep(2.0)
        assert (
            len(adapter.published) == 4
        )  # the second batch while the first was to be deleted, and no third one
        delete_again(sql_store)
        until(lambda: not waiting())
    assert sorted(adapter.bodies) == list("012345")


def test_without_another_thread_batches_are_deleted_too(outbox, send, waiting, monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == "idempotent-relay-deletes":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    adapter = Picky()
    send(*range(6))
    with relay(outbox, adapter, batch_size=2):
        until(lambda: not waiting())
    assert sorted(adapter.bodies) == list("012345")


@pytest.mark.slow
def test_a_held_message_that_is_not_deleted_is_not_published_again(outbox, sql_store, tables, send, waiting):
    adapter = Picky(refuses=["once"])
    send("once", order_key="k")
    with relay(outbox, adapter):
        until(lambda: outbox.store.stats().held == 1)
        no_delete(sql_store, tables.waiting.name)
        adapter.refuses.clear()
        until(lambda: adapter.bodies)
        tries = len(adapter.batches)
        time.sleep(3.0)
        assert adapter.bodies == ["once"]
        assert len(adapter.batches) == tries
        delete_again(sql_store)
        send("later", order_key="k")
        until(lambda: not waiting())
    assert adapter.bodies == ["once", "later"]


def test_messages_whose_hold_is_gone_are_published(outbox, sql_store, tables, send, waiting):
    adapter = Picky(refuses=["bad"])
    send("bad", "behind", order_key="k")
    with relay(outbox, adapter, backoff=Backoff(initial_s=600.0, maximum_s=600.0)):
        until(lambda: outbox.store.stats().held == 2)
    with sql_store.admin_engine.begin() as connection:
        connection.execute(tables.held.delete())
    adapter.refuses.clear()
    with relay(outbox, adapter):
        until(lambda: not waiting())
    assert adapter.bodies == ["bad", "behind"]


MADE = {
    "sqlite": ["CREATE TRIGGER no_delete BEFORE DELETE ON {} BEGIN SELECT RAISE(ABORT, 'no'); END"],
    "mysql": [
        "CREATE TRIGGER no_delete BEFORE DELETE ON {} FOR EACH ROW SIGNAL SQLSTATE '42000' SET MYSQL_ERRNO = 1142"
    ],
    "postgres": [
        "CREATE FUNCTION no_delete() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$",
        "CREATE TRIGGER no_delete BEFORE DELETE ON {} EXECUTE FUNCTION no_delete()",
    ],
}
DROPPED = {
    "sqlite": "DROP TRIGGER no_delete",
    "mysql": "DROP TRIGGER no_delete",
    "postgres": "DROP FUNCTION no_delete CASCADE",
}


def no_delete(store, table):
    with store.admin_engine.begin() as connection:
        for statement in MADE[store.kind]:
            connection.exec_driver_sql(statement.format(table))


def delete_again(store):
    with store.admin_engine.begin() as connection:
        connection.exec_driver_sql(DROPPED[store.kind])
