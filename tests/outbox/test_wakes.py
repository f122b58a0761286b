"""PostgreSQL's NOTIFY wakes the relays of other processes."""

import os
import threading

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message
from idempotent.errors import ConfigurationError
from idempotent.outbox import Outbox
from idempotent.outbox.wakes import Listener
from tests.outbox.picky import Picky, relay, until

only_postgres = pytest.mark.parametrize("sql_store", ["postgres"], indirect=True)


@pytest.fixture
def notifying(sql_store, tables):
    made = Outbox(sql_store.engine(), table=sql_store.table, notify=True)
    sql_store.opened.callback(made.close)
    return made


@pytest.fixture
def heard(outbox):
    """How often a listener of another outbox object, as in another process, was woken."""
    times = []
    listener = Listener(outbox.store, outbox.channel, lambda: times.append(1))
    until(lambda: times)  # it listens
    yield times
    listener.stop()


def commit(outbox, store):
    with Session(store.admin_engine) as session, session.begin():
        outbox.send(session, Message("invoices", b"1"))


@only_postgres
def test_a_commit_wakes_a_listener_of_another_process(notifying, heard, sql_store):
    commit(notifying, sql_store)
    until(lambda: len(heard) == 2)


@only_postgres
def test_a_rollback_wakes_no_listener(notifying, heard, sql_store):
    with Session(sql_store.admin_engine) as session:
        notifying.send(session, Message("invoices", b"1"))
        notifying.flush(session)
        session.rollback()
    commit(notifying, sql_store)
    until(lambda: len(heard) == 2)


@only_postgres
def test_many_commits_are_few_notifications(notifying, heard, sql_store):
    with sql_store.admin_engine.connect() as connection:
        for _ in range(300):
            with Session(connection, join_transaction_mode="control_fully") as session, session.begin():
                notifying.send(session, Message("invoices", b"1"))
    until(lambda: len(heard) > 1)
    assert len(heard) < 150


@only_postgres
def test_a_listener_whose_connection_is_ended_listens_again(notifying, heard, sql_store):
    with sql_store.admin_engine.connect() as connection:
        ended = connection.execute(
            sa.text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE query LIKE 'LISTEN%' AND datname = current_database()"
            )
        ).all()
    assert ended
    until(lambda: len(heard) == 2)
    commit(notifying, sql_store)
    until(lambda: len(heard) == 3)


@only_postgres
def test_a_relay_listens(notifying, outbox, sql_store, waiting):
    adapter = Picky()
    listening = sa.text(
        "SELECT COUNT(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
    )

    def listeners():
        with sql_store.admin_engine.connect() as connection:
            return connection.execute(listening).scalar()

    with relay(outbox, adapter, poll_s=600.0):
        until(lambda: listeners() == 1)
        commit(notifying, sql_store)
        until(lambda: not waiting())
    until(lambda: listeners() == 0)


@only_postgres
def test_a_child_notifies_by_itself(notifying, heard, sql_store):
    commit(notifying, sql_store)
    until(lambda: len(heard) == 2)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        commit(notifying, sql_store)
        os.read(read, 1)  # until the parent has heard it
        os._exit(0)
    try:
        until(lambda: len(heard) == 3)
    finally:
        os.write(write, b"1")
        os.waitpid(child, 0)
        os.close(read), os.close(write)


@only_postgres
def test_a_commit_succeeds_also_when_the_thread_that_notifies_cannot_start(
    notifying, heard, sql_store, waiting, monkeypatch
):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == "idempotent-notifier":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        commit(notifying, sql_store)
    assert waiting() == ["1"]
    commit(notifying, sql_store)
    until(lambda: len(heard) == 2)


@pytest.mark.parametrize("sql_store", ["mysql", "sqlite"], indirect=True)
def test_other_databases_have_no_notifications(sql_store):
    with pytest.raises(ConfigurationError, match="PostgreSQL"):
        Outbox(sql_store.engine(), table=sql_store.table, notify=True)
    assert not any(thread.name == "idempotent-notifier" for thread in threading.enumerate())
