"""What one message leaves on a connection never reaches the next one."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from idempotent import Outcome, Registry
from idempotent.policy import Backoff
from tests.checkers.sql.booking import book, consumer_of, messages, only, outcomes

SETTINGS = {
    "sqlite": ("PRAGMA cache_size = 123", "PRAGMA cache_size = 2000", "PRAGMA cache_size", 2000),
    "mysql": ("SET @tenant = 'a'", "SET @tenant = 'none'", "SELECT @tenant", "none"),
    "postgres": ("SET app.tenant = 'a'", "SET app.tenant = 'none'", "SHOW app.tenant", "none"),
}


def run(driver, statement):
    cursor = driver.cursor()
    cursor.execute(statement)
    cursor.close()
    driver.commit()


@pytest.mark.parametrize("moment", ["reset", "checkin", "checkout"])
@pytest.mark.parametrize("ending", [None, ValueError, KeyboardInterrupt])
def test_a_setting_is_undone_as_the_engine_of_the_application_undoes_it(sql_store, moment, ending):
    leave, undo, read, undone = SETTINGS[sql_store.kind]
    engine = sql_store.engine()
    for event in ("connect", moment):
        sa.event.listen(engine, event, lambda driver, *_: run(driver, undo))
    seen = []

    def handle(message, session):
        seen.append(session.scalar(sa.text(read)))
        session.execute(sa.text(leave))
        if ending and message.id == "1":
            raise ending

    consumer = consumer_of(sql_store, sql_store.transactional(engine), handle)
    if ending is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            consumer.process(messages("1")[0])
    else:
        consumer.process(messages("1")[0])
    consumer.process_many(messages("2"))
    assert seen == [undone, undone]


def test_the_pools_events_fire_for_each_message_with_what_the_listeners_keep(sql_store):
    engine = sql_store.engine()
    fired = []
    sa.event.listen(engine, "connect", lambda _, entry: entry.info.update(number=len(fired)))
    sa.event.listen(
        engine, "checkout", lambda _d, entry, _c: fired.append(("checkout", entry.info["number"]))
    )
    sa.event.listen(engine, "reset", lambda _d, entry, _s: fired.append(("reset", entry.info["number"])))
    sa.event.listen(engine, "checkin", lambda _d, entry: fired.append(("checkin", entry.info["number"])))
    consumer = consumer_of(sql_store, sql_store.transactional(engine))
    consumer.process(messages("1")[0])
    fired.clear()
    for message in messages("2", "3"):
        consumer.process(message)
    assert [event for event, _ in fired] == ["checkout", "reset", "checkin"] * 2


@pytest.mark.parametrize("moment", ["reset", "checkout"])
def test_a_connection_that_a_listener_refuses_is_replaced(sql_store, moment):
    engine = sql_store.engine()
    used, refused = [], []

    def refuse(driver, *_):
        if used and driver is used[0] and not refused:
            refused.append(driver)
            raise sa.exc.DisconnectionError

    def handle(message, session):
        used.append(session.connection().connection.dbapi_connection)

    consumer = consumer_of(sql_store, sql_store.transactional(engine), handle)
    consumer.process(messages("0")[0])  # makes the library's own connections, too
    sa.event.listen(engine, moment, refuse)
    assert outcomes(consumer.process(m) for m in messages("1", "2")) == ["processed", "processed"]
    assert used[0] in refused
    assert used[2] is not used[0]


@pytest.mark.parametrize("takes", [Session, Connection])
def test_execution_options_end_with_the_handler(sql_store, takes):
    nowhere = {"schema_translate_map": {None: "nowhere"}}
    runs = []

    def handle(message, given):
        runs.append(message.id)
        book(sql_store, given, message)
        connection = given if takes is Connection else given.connection()
        connection.execution_options(**nowhere)

    handle.__annotations__["given"] = takes
    consumer = Registry().consumer("orders", checker=sql_store.transactional())(handle)
    assert outcomes(consumer.process(m) for m in messages("1", "2")) == ["processed"] * 2
    assert outcomes(consumer.process_many(messages("3", "4"))) == ["processed"] * 2
    assert runs == ["1", "2", "3", "4"], "no message of the group had to run again alone"
    assert sql_store.booked() == {"1": 1, "2": 1, "3": 1, "4": 1}


def test_a_session_that_outlives_its_message_cannot_write_with_the_next_one(sql_store):
    kept = []

    @Registry().consumer("orders", checker=sql_store.transactional())
    def consumer(message, session: Session):
        for old in [given for pair in kept for given in pair]:
            with pytest.raises(sa.exc.ResourceClosedError):
                book(sql_store, old, message)
        kept.append((session, session.connection()))
        book(sql_store, session, message)

    for message in messages("1", "2", "3"):
        assert consumer.process(message).outcome is Outcome.PROCESSED
    for session, connection in kept:
        for old in (session, connection):
            with pytest.raises(sa.exc.ResourceClosedError):
                book(sql_store, old, messages("late")[0])
    assert sql_store.booked() == {"1": 1, "2": 1, "3": 1}
    assert len({id(connection) for _, connection in kept}) == 3
    assert consumer.process(messages("4")[0]).outcome is Outcome.PROCESSED


BREAKING = {
    "sqlite": ["PRAGMA query_only = ON"],
    "mysql": ["SET SESSION TRANSACTION READ ONLY"],
    "postgres": [
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SET ROLE pg_monitor",
    ],
}


def test_a_setting_that_makes_claims_impossible_costs_one_try(sql_store):
    for statement in BREAKING[sql_store.kind]:
        checker = sql_store.transactional()

        def leave(_, session, statement=statement):
            session.execute(sa.text(statement))

        broken = consumer_of(sql_store, checker, leave)
        assert broken.process(messages(f"{statement} 1")[0]).outcome is Outcome.PROCESSED, statement
        fine = consumer_of(sql_store, checker, lambda *_: None)
        tries = [fine.process(messages(f"{statement} 2")[0]).outcome for _ in range(2)]
        assert tries in (
            [Outcome.UNAVAILABLE, Outcome.PROCESSED],
            [Outcome.PROCESSED, Outcome.DUPLICATE],
        ), statement


MISLEADING = {
    "postgres": ["SET search_path TO pg_catalog", "SET ROLE pg_monitor"],
    "mysql": ["USE information_schema"],
}


def test_a_setting_that_breaks_the_next_handlers_own_statements_costs_one_try(sql_store):
    only(sql_store, *MISLEADING)
    for statement in MISLEADING[sql_store.kind]:
        checker = sql_store.transactional()
        broken = consumer_of(
            sql_store, checker, lambda _, session, statement=statement: session.execute(sa.text(statement))
        )
        assert broken.process(messages(f"{statement} 1")[0]).outcome is Outcome.PROCESSED, statement
        fine = consumer_of(sql_store, checker, backoff=Backoff(0.0, 0.0))
        tries = [fine.process(messages(f"{statement} 2")[0]).outcome for _ in range(2)]
        assert tries in (
            [Outcome.FAILED, Outcome.PROCESSED],
            [Outcome.UNAVAILABLE, Outcome.PROCESSED],
            [Outcome.PROCESSED, Outcome.DUPLICATE],
        ), statement
        assert sql_store.booked()[f"{statement} 2"] == 1
