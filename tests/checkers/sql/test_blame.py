"""Whose failure it is, the handler's or the store's: the connection that holds the key says so."""

from __future__ import annotations

import itertools
import sqlite3
import time
from contextlib import contextmanager, suppress

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from idempotent import Message, Outcome, Registry
from idempotent.observe import Event, counters
from tests.checkers.sql.booking import MODES, book, consumer_of, messages, only, outcomes

# Errors that say nothing about the transaction


def of_another_database(store):
    """An exception of the driver that another server, or another file, caused."""
    if store.kind == "sqlite":
        return sqlite3.OperationalError("unable to open database file")
    if store.kind == "mysql":
        with pytest.raises(pymysql.err.OperationalError) as caught:
            pymysql.connect(host="127.0.0.1", port=1)
    else:
        with pytest.raises(psycopg.OperationalError) as caught:
            psycopg.connect("host=127.0.0.1 port=1")
    return caught.value


def deadlock_elsewhere(store):
    if store.kind == "mysql":
        return pymysql.err.OperationalError(1213, "Deadlock found")
    if store.kind == "postgres":
        return psycopg.errors.DeadlockDetected("deadlock detected")
    return sqlite3.OperationalError("database is locked")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cause", [of_another_database, deadlock_elsewhere])
def test_an_error_of_another_database_is_the_handlers_failure_and_counts(sql_store, mode, cause):
    error, runs = cause(sql_store), []

    def look_elsewhere(message, session):
        runs.append(message.id)
        raise error

    checker = sql_store.transactional(**mode)
    consumer = consumer_of(sql_store, checker, look_elsewhere, max_attempts=2)
    assert outcomes(consumer.process(m) for m in messages("1", "1")) == ["failed", "dead"]
    assert runs == ["1", "1"]
    assert outcomes(consumer.process_many(messages("2", "3"))) == ["failed", "failed"]
    assert sql_store.booked() == {}


@pytest.mark.parametrize("moment", ["before_flush", "before_commit"])
def test_an_oserror_of_a_session_event_is_the_handlers_failure_and_counts(sql_store, moment):
    factory = sessionmaker(sql_store.engine())

    def send(*_):
        raise ConnectionRefusedError("the audit service is down")

    sa.event.listen(factory, moment, send)
    base = sa.orm.registry()
    effects = sql_store.effects

    class Effect:
        pass

    base.map_imperatively(Effect, effects, primary_key=[effects.c.id])

    @Registry().consumer("orders", checker=sql_store.transactional(factory), max_attempts=2)
    def consumer(message, session: Session):
        effect = Effect()
        effect.id = message.id
        session.add(effect)

    assert outcomes(consumer.process(m) for m in messages("1", "1")) == ["failed", "dead"]
    assert outcomes(consumer.process_many(messages("2", "3"))) == ["failed", "failed"]
    assert sql_store.booked() == {}
    base.dispose()


@pytest.mark.parametrize("error", [ConnectionRefusedError("the audit service is down"), ValueError("no")])
def test_an_event_that_fails_after_the_commit_changes_nothing(sql_store, error):
    factory = sessionmaker(sql_store.engine())

    def send(*_):
        raise error

    sa.event.listen(factory, "after_commit", send)
    checker = sql_store.transactional(factory)
    consumer = consumer_of(sql_store, checker, max_attempts=1)
    assert outcomes(consumer.process_many(messages("1", "2"))) == ["processed", "processed"]
    assert outcomes(consumer.process(m) for m in messages("3", "3")) == ["processed", "duplicate"]
    assert sql_store.booked() == {"1": 1, "2": 1, "3": 1}


def test_a_procedure_that_does_not_exist_is_the_handlers_failure_and_counts(sql_store):
    only(sql_store, "mysql")
    runs = []

    def call(message, session):
        runs.append(message.id)
        session.execute(sa.text("CALL no_such_procedure()"))

    consumer = consumer_of(sql_store, sql_store.transactional(), call, max_attempts=2)
    assert outcomes(consumer.process(m) for m in messages("1", "1")) == ["failed", "dead"]
    assert runs == ["1", "1"]


# Contention


@contextmanager
def locked_row(store):
    """A row that another transaction holds; `release()` lets it go."""
    name = f"{store.table}_l"
    with store.engine().connect() as connection:
        connection.execute(sa.text(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY)"))
        connection.execute(sa.text(f"INSERT INTO {name} VALUES (1)"))
        connection.commit()
        connection.execute(sa.text(f"SELECT id FROM {name} FOR UPDATE"))
        try:
            yield connection.rollback
        finally:
            connection.rollback()
            connection.execute(sa.text(f"DROP TABLE {name}"))
            connection.commit()


def take(store, session):
    session.execute(sa.text(f"SELECT id FROM {store.table}_l FOR UPDATE NOWAIT"))


@pytest.mark.parametrize("mode", MODES)
def test_contention_handled_in_a_nested_transaction_is_no_reason_to_run_again(sql_store, mode):
    only(sql_store, "mysql", "postgres")
    runs = []

    def handle(message, session):
        runs.append(message.id)
        with suppress(sa.exc.OperationalError), session.begin_nested():
            take(sql_store, session)
        if message.id == "fails":
            raise ValueError("after it")

    checker = sql_store.transactional(**mode)
    consumer = consumer_of(sql_store, checker, handle, max_attempts=2)
    with locked_row(sql_store):
        assert outcomes([consumer.process(messages("1")[0])]) == ["processed"]
        assert outcomes(consumer.process_many(messages("2", "3"))) == ["processed", "processed"]
        assert outcomes(consumer.process(m) for m in messages("fails", "fails")) == ["failed", "dead"]
    assert runs == ["1", "2", "3", "fails", "fails"]
    assert sql_store.booked() == {"1": 1, "2": 1, "3": 1}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_contention_that_ends_the_handler_costs_a_run_and_no_attempt(sql_store, mode, nested):
    only(sql_store, "mysql", "postgres")
    with locked_row(sql_store) as release:
        runs = []

        def handle(message, session):
            runs.append(message.id)
            if len(runs) == 2:
                release()
            if nested:
                with session.begin_nested():
                    take(sql_store, session)
            else:
                take(sql_store, session)

        consumer = consumer_of(sql_store, sql_store.transactional(**mode), handle, max_attempts=1)
        assert consumer.process(messages("1")[0]).outcome is Outcome.PROCESSED
    assert runs == ["1", "1"]


def test_postgresqls_contention_of_before_does_not_excuse_a_later_error(sql_store):
    only(sql_store, "postgres")
    runs = []

    def handle(message, session):
        runs.append(message.id)
        with suppress(sa.exc.OperationalError), session.begin_nested():
            take(sql_store, session)
        session.execute(sa.text("SELECT 1 / 0"))

    consumer = consumer_of(sql_store, sql_store.transactional(), handle, max_attempts=2)
    with locked_row(sql_store):
        assert outcomes(consumer.process(m) for m in messages("1", "1")) == ["failed", "dead"]
    assert runs == ["1", "1"]


def test_a_commit_that_meets_a_lock_is_run_again(sql_store):
    """In SQLite's rollback journal a reader keeps a writer from committing."""
    only(sql_store, "sqlite")
    with sql_store.admin_engine.begin() as connection:
        connection.execute(sql_store.effects.insert().values(id="before"))
    sql_store.admin_engine.dispose()
    reader = sqlite3.connect(sql_store.engine().url.database, isolation_level=None)
    reader.execute("PRAGMA journal_mode=DELETE")
    reader.execute("BEGIN")
    assert reader.execute(f"SELECT * FROM {sql_store.effects.name}").fetchone()
    runs = []

    def handle(message, session):
        runs.append(message.id)
        if len(runs) == 2:
            reader.rollback()

    engine = sql_store.engine(connect_args={"timeout": 0.1})
    consumer = consumer_of(sql_store, sql_store.transactional(engine), handle, max_attempts=1)
    assert consumer.process(messages("1")[0]).outcome is Outcome.PROCESSED
    reader.close()
    assert runs == ["1", "1"]
    assert counters.snapshot()[consumer.name, Event.TRANSACTION_REPEATED] >= 1
    assert sql_store.booked() == {"before": 1, "1": 1}


# PostgreSQL's timeouts for idle connections


def backends(store, name):
    with store.admin_engine.connect() as connection:
        found = sa.text("SELECT count(*) FROM pg_stat_activity WHERE application_name = :name")
        return connection.scalar(found, {"name": name})


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_idle_connection_that_postgresql_closed_costs_a_retry(sql_store):
    only(sql_store, "postgres")
    name = f"{sql_store.table}_idle"
    options = {"options": f"-c idle_session_timeout=100 -c application_name={name}"}
    consumer = consumer_of(sql_store, sql_store.transactional(sql_store.engine(connect_args=options)))
    for message in messages("1", "2"):
        assert consumer.process(message).outcome is Outcome.PROCESSED
        wait_for(lambda: backends(sql_store, name) == 0)
    assert outcomes(consumer.process_many(messages("3", "4"))) == ["processed", "processed"]


def test_a_transaction_that_postgresql_ended_because_it_was_idle_costs_a_run_and_no_attempt(sql_store):
    only(sql_store, "postgres")
    name = f"{sql_store.table}_busy"
    options = {"options": f"-c idle_in_transaction_session_timeout=200 -c application_name={name}"}
    runs = itertools.count()

    def handle(message, session):
        if next(runs) == 0:
            wait_for(lambda: backends(sql_store, name) == 1)  # the connection of the checker itself
        book(sql_store, session, Message("orders", id="after the pause"))

    checker = sql_store.transactional(sql_store.engine(connect_args=options))
    consumer = consumer_of(sql_store, checker, handle, max_attempts=1)
    assert consumer.process(messages("1")[0]).outcome is Outcome.PROCESSED
    assert sql_store.booked() == {"1": 1, "after the pause": 1}
