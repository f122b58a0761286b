"""`idempotent doctor` on an outbox."""

import secrets
from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.errors import StoreError
from idempotent.outbox import Relay, outbox_tables
from tests.cli.outbox.sending import send, until
from tests.cli.outbox.test_outbox import held
from tests.support.privileges import user_of_tables


def said(cli, store):
    """The warnings and errors about the outbox."""
    answer = cli("doctor", "--url", store.url, "--table", store.table, "--json")
    return [line["what"] for line in answer.lines if "outbox" in line["what"] and line["level"] != "ok"]


def test_an_empty_outbox_is_healthy(cli, outbox, sql_store):
    assert said(cli, sql_store) == []


def test_no_outbox_is_healthy(cli, sql_store):
    assert said(cli, sql_store) == []


@pytest.mark.parametrize("delay_s", [0, 600])
def test_messages_without_a_relay_are_an_error(cli, outbox, sql_store, delay_s):
    send(outbox, sql_store, "1", delay_s=delay_s)
    assert said(cli, sql_store) == [f"no relay is at work, and messages wait in {sql_store.table}_outbox: 1"]


def test_held_messages_are_a_warning(cli, outbox, sql_store):
    relay, _ = held(outbox, sql_store)
    with relay:
        until(lambda: outbox.store.stats().held == 2)
        assert said(cli, sql_store) == [
            f"2 messages are held in {sql_store.table}_outbox, behind 1 that a broker refuses"
        ]


def test_old_messages_are_a_warning(cli, outbox, sql_store):
    send(outbox, sql_store, "1", to="nobody")
    with sql_store.admin_engine.begin() as connection:
        table = f"{sql_store.table}_outbox"
        connection.execute(sa.text(f"UPDATE {table} SET created_at = created_at - 400000000"))
    with Relay(outbox, MemoryAdapter(MemoryBroker())):
        until(lambda: outbox.store.stats().relays == 1)
        assert any("the oldest for 40" in line for line in said(cli, sql_store))


def test_messages_for_a_broker_of_no_relay_are_an_error(cli, outbox, sql_store):
    send(outbox, sql_store, "1", to="mail")
    with Relay(outbox, {"": MemoryAdapter(MemoryBroker()), "b": MemoryAdapter(MemoryBroker())}):
        until(lambda: outbox.store.stats().relays == 1)
        until(lambda: len(said(cli, sql_store)) == 1)
        assert said(cli, sql_store) == [
            f"messages wait in {sql_store.table}_outbox for the broker 'mail', to which no relay publishes: 1"
        ]


def test_an_outbox_without_key_tables_is_looked_at(cli, outbox, sql_store):
    send(outbox, sql_store, "1")

    def rename(before, after):
        with sql_store.admin_engine.begin() as connection:
            connection.execute(
                sa.text(f"ALTER TABLE {sql_store.table}{before} RENAME TO {sql_store.table}{after}")
            )

    rename("", "_away")
    assert f"no relay is at work, and messages wait in {sql_store.table}_outbox: 1" in said(cli, sql_store)
    rename("_away", "")


def test_messages_that_wait_longer_because_the_clock_went_back_are_a_warning(cli, outbox, sql_store):
    send(outbox, sql_store, "later", delay_s=600)
    relay, _ = held(outbox, sql_store)
    with relay:
        until(lambda: outbox.store.stats().held == 2)
        assert not any("clock" in line for line in said(cli, sql_store))
        with sql_store.admin_engine.begin() as connection:
            for table, written in (("delayed", "created_at"), ("held", "held_at")):
                change = f"SET {written} = {written} + 3600000000, due_at = due_at + 3600000000"
                connection.execute(sa.text(f"UPDATE {sql_store.table}_outbox_{table} {change}"))
        found = [line for line in said(cli, sql_store) if "clock has gone back" in line]
        assert [line.split(": ")[1].split(" in ")[0] for line in found] == [
            "1 delayed messages",
            "1 refused messages",
        ]
        assert all("by 3,6" in line or "by 3,5" in line for line in found)
        assert all("up to 4,2" in line or "up to 4,1" in line for line in found)


@pytest.mark.slow
@pytest.mark.parametrize("sql_store", ["postgres"], indirect=True)
def test_dead_rows_are_a_warning(cli, outbox, sql_store):
    table = f"{sql_store.table}_outbox"
    with sql_store.admin_engine.begin() as connection:
        connection.execute(sa.text(f"ALTER TABLE {table} SET (autovacuum_enabled = false)"))
        connection.execute(
            sa.text(
                f"INSERT INTO {table} (bucket, lane, message_id, destination, subject, created_at)"
                " SELECT 1, ''::bytea, 'm', '', 's', 0 FROM generate_series(1, 100001)"
            )
        )
    assert not any("dead rows" in line for line in said(cli, sql_store))
    with sql_store.admin_engine.begin() as connection:
        connection.execute(sa.text(f"DELETE FROM {table}"))
    until(lambda: any("100,001 dead rows" in line for line in said(cli, sql_store)))


@pytest.fixture
def limited(sql_store, outbox):
    """`limited(right, suffix)`: the outbox's store as a user without this right on one of the tables."""
    names = outbox_tables(sa.MetaData(), sql_store.table)
    tables = [sql_store.table, *(f"{sql_store.table}{each}" for each in ("_failures", "_offsets"))]
    tables += [each.name for each in (names.waiting, names.delayed, names.held, names.leases)]
    with user_of_tables(sql_store.admin_engine, f"u{secrets.token_hex(6)}", tables) as url:
        user = sa.make_url(url).username
        owner = f"'{user}'@'%'" if sql_store.kind == "mysql" else user

        def change(statement):
            with sql_store.admin_engine.begin() as connection:
                connection.execute(sa.text(statement))

        if sql_store.kind == "postgres":
            for each in (names.waiting, names.delayed):
                change(f"GRANT USAGE ON SEQUENCE {each.name}_id_seq TO {owner}")

        def revoke(right, suffix):
            kind = "SEQUENCE " if right == "USAGE" else ""
            change(f"REVOKE {right} ON {kind}{sql_store.table}_outbox{suffix} FROM {owner}")
            return replace(sql_store, url=url)

        yield revoke


@pytest.mark.parametrize("sql_store", ["postgres", "mysql"], indirect=True)
@pytest.mark.parametrize(
    ("right", "suffix", "cause"),
    [
        ("SELECT", "", "a relay, and this command, cannot read it"),
        ("SELECT", "_held", "a relay, and this command, cannot read it"),
        ("INSERT", "", "nothing can be sent"),
        ("UPDATE", "_held", "a relay cannot hold what a broker refuses"),
        ("DELETE", "", "a relay publishes nothing more"),
        ("UPDATE", "_leases", "a relay gets nothing to publish"),
    ],
)
def test_a_right_that_is_missing_is_named_with_what_it_causes(cli, limited, right, suffix, cause):
    store = limited(right, suffix)
    table = f"{store.table}_outbox{suffix}"
    assert said(cli, store) == [f"this user has no right to {right} in {table}: {cause}"]


@pytest.mark.parametrize("sql_store", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    ("suffix", "cause", "delay_s"),
    [("", "nothing can be sent", 0), ("_delayed", "nothing can be sent with delay_s", 600)],
)
def test_a_sequence_that_may_not_be_used_is_named(cli, outbox, limited, suffix, cause, delay_s):
    store = limited("USAGE", f"{suffix}_id_seq")
    (line,) = said(cli, store)
    sequence = f"public.{store.table}_outbox{suffix}_id_seq"
    assert line == f"this user has no right to USAGE of the sequence {sequence}: {cause}"
    engine = sa.create_engine(store.url)
    with Session(engine) as session:
        outbox.send(session, Message("invoices", b"1"), delay_s=delay_s)
        with pytest.raises(StoreError, match="permission denied for sequence"):
            session.commit()
    engine.dispose()
