"""A handler cannot end the transaction that its key lives in."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm import registry as mappers

from idempotent import Message, Outcome, Registry
from idempotent.errors import TransactionEscapedError
from tests.checkers.sql.booking import MODES, book, consumer_of, keys, messages, only, outcomes, raw
from tests.checkers.sql.endings import DISCARDED, TABLE, Fate, driver, shown
from tests.support.stores import open_store

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "consumers.md"
CASES = [pytest.param(row, way, id=name) for row in TABLE for name, way in row.ways.items()]
THEN = ["lets errors pass", "goes on", "raises", "raises what is ignored"]


@pytest.mark.sample(12)
@pytest.mark.parametrize("together", [False, True], ids=["alone", "group"])
@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize("then", THEN)
@pytest.mark.parametrize(("row", "way"), CASES)
def test_a_handler_cannot_end_the_transaction_its_key_lives_in(sql_store, row, way, then, options, together):
    only(sql_store, *way.stores)

    def end(message, session):
        if message.id == "2":
            with nullcontext() if then == "lets errors pass" else suppress(Exception):
                way.function(session)
            if then == "goes on":
                if sql_store.kind == "sqlite" and not driver(session).in_transaction:
                    raw(session, "BEGIN")
                with suppress(Exception):
                    book(sql_store, session, Message("orders", id="stray"))
            elif then == "raises":
                raise ValueError("no such customer")
            elif then == "raises what is ignored":
                raise LookupError

    checker = sql_store.transactional(**options)
    ignored = (LookupError, TransactionEscapedError)
    consumer = consumer_of(sql_store, checker, end, max_attempts=9, idempotent_for=ignored)
    names = ("1", "2", "3") if together else ("2",)
    results = consumer.process_many(messages(*names))
    found = dict(zip(names, outcomes(results), strict=True))
    if row.fate is Fate.DEAD:  # its COMMIT has stored the keys of all, so that no effect is repeated
        assert found == dict.fromkeys(names, "dead")
        assert sql_store.booked() == dict.fromkeys(names[:2], 1)
        assert keys(checker) == set(names)
        return
    ignores = row.fate is Fate.UNDONE and then == "raises what is ignored"
    assert found.pop("2") == ("ignored" if ignores else "failed")
    assert set(found.values()) <= {"processed"}
    assert sql_store.booked() == dict.fromkeys(found, 1)
    assert keys(checker) == {*found, *(["2"] if ignores else [])}


def test_its_page_shows_the_table():
    assert "\n".join(shown()) in PAGE.read_text()


def test_an_ignored_group_of_exceptions_hides_no_refused_commit(sql_store):
    """As a TaskGroup raises it. The handler may believe that its effect was committed, which is rolled back."""

    def go_on(message, session):
        try:
            session.commit()
        except TransactionEscapedError as refusal:
            raise ExceptionGroup("tasks", [refusal]) from None

    checker = sql_store.transactional()
    options = {"max_attempts": 9, "idempotent_for": (ExceptionGroup, TransactionEscapedError)}
    result = consumer_of(sql_store, checker, go_on, **options).process(messages("1")[0])
    assert result.outcome is Outcome.FAILED
    assert sql_store.booked() == {}
    assert keys(checker) == set()


DISCARDS = {
    **{name: way.function for name, way in DISCARDED.ways.items()},
    "flush and close": lambda session: (session.flush(), session.close()),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("options", [{}, {"savepoints": True}, {"strict": True}])
@pytest.mark.parametrize("discard", DISCARDS)
def test_rows_cannot_be_discarded_with_the_session_without_notice(sql_store, discard, options):
    class Effect:
        def __init__(self, id):
            self.id = id

    effects = sql_store.effects.to_metadata(sa.MetaData())
    mappers().map_imperatively(Effect, effects, primary_key=[effects.c.id])
    checker = sql_store.transactional(**options)

    @Registry().consumer("orders", checker=checker, max_attempts=9)
    def consumer(message, session: Session):
        session.add(Effect(id=message.id))
        if message.id == "2":
            DISCARDS[discard](session)

    results = [consumer.process(messages("2")[0]), *consumer.process_many(messages("1", "2", "3"))]
    assert outcomes(results) == ["failed", "processed", "failed", "processed"]
    assert sql_store.booked() == {"1": 1, "3": 1}
    assert keys(checker) == {"1", "3"}


def test_ddl_that_commits_implicitly_is_refused(sql_store):
    checker = sql_store.transactional()

    def create(message, session):
        session.execute(sa.text(f"CREATE TABLE {sql_store.table}_scratch (a INTEGER)"))
        session.execute(sa.text(f"DROP TABLE {sql_store.table}_scratch"))

    result = consumer_of(sql_store, checker, create).process(messages("1")[0])
    if sql_store.kind == "mysql":
        assert isinstance(result.error, TransactionEscapedError)
        assert sql_store.booked() == {}
    else:
        assert result.outcome is Outcome.PROCESSED, "there DDL is part of the transaction"


HIDDEN = {
    "postgres": [
        "SET LOCAL work_mem = '8MB'; ROLLBACK; BEGIN",
        "SELECT 1; ROLLBACK AND CHAIN",
        "SET LOCAL work_mem = '8MB'; ROLLBACK",
        "/* a /* nested */ comment */ ROLLBACK",
        "SELECT 1; /* then */ ABORT",
    ],
    "mysql": [
        "/*!50000 ROLLBACK */",
        "/*M!100100 ROLLBACK */",
        "/*! ROLLBACK AND CHAIN */",
        "SET STATEMENT max_statement_time = 5 FOR ROLLBACK",
        "BEGIN NOT ATOMIC ROLLBACK; END",
        "IF 1 THEN ROLLBACK; END IF",
    ],
}


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize(
    ("kind", "statement"), [(kind, statement) for kind, found in HIDDEN.items() for statement in found]
)
def test_a_rollback_that_is_not_the_first_word_loses_and_repeats_nothing(request, kind, statement, goes_on):
    with contextmanager(open_store)(kind, request, reuse=True) as store:

        def handle(message, session):
            session.execute(sa.text(statement))
            if goes_on:
                book(store, session, Message("orders", id="stray"))

        checker = store.transactional()
        consumer = consumer_of(store, checker, handle, max_attempts=2)
        found = [consumer.process(messages("1")[0]).outcome for _ in range(3)]
        assert found == [Outcome.FAILED, Outcome.DEAD, Outcome.DEAD]
        assert store.booked() == {}


@pytest.mark.parametrize("word", ["commit", "rollback", "begin", "; end"])
def test_such_a_word_in_a_text_harms_nothing(sql_store, word):
    def handle(_, session):
        session.execute(sa.text(f"SELECT 'we {word} to you'"))

    checker = sql_store.transactional()
    assert consumer_of(sql_store, checker, handle).process(messages("1")[0]).outcome is Outcome.PROCESSED
    assert sql_store.booked() == {"1": 1}


def test_what_the_drivers_connection_writes_commits_with_the_key(sql_store):
    """As with COPY of psycopg, which SQLAlchemy does not have."""

    def book_by_hand(message, session):
        table, cursor = sql_store.effects.name, driver(session).cursor()
        if sql_store.kind == "postgres":
            with cursor.copy(f"COPY {table} (id) FROM STDIN") as copy:
                copy.write_row(["by hand"])
        else:
            cursor.execute(f"INSERT INTO {table} (id) VALUES ('by hand')")
        cursor.close()

    consumer = consumer_of(sql_store, sql_store.transactional(), book_by_hand)
    assert outcomes([consumer.process(messages("1")[0]) for _ in range(2)]) == ["processed", "duplicate"]
    assert sql_store.booked() == {"1": 1, "by hand": 1}


def test_strict_commits_what_is_in_order(sql_store):
    consumer = consumer_of(sql_store, sql_store.transactional(strict=True))
    assert outcomes(consumer.process_many(messages("1", "2", "1"))) == ["processed", "processed", "duplicate"]
    assert sql_store.booked() == {"1": 1, "2": 1}


def test_a_swallowed_error_that_aborts_postgresqls_transaction_is_a_failure_not_a_lost_message(sql_store):
    checker = sql_store.transactional()

    def stumble(message, session):
        with suppress(sa.exc.DBAPIError):
            session.execute(sa.text("SELECT * FROM no_such_table"))

    result = consumer_of(sql_store, checker, stumble, max_attempts=2).process(messages("1")[0])
    if sql_store.kind == "postgres":
        assert result.outcome is Outcome.FAILED
        assert sql_store.booked() == {}
    else:
        assert result.outcome is Outcome.PROCESSED
        assert sql_store.booked() == {"1": 1}


def test_work_that_may_fail_goes_into_a_nested_transaction(sql_store):
    def stumble(message, session):
        try:
            with session.begin_nested():
                book(sql_store, session, Message("orders", id="undone"))
                session.execute(sa.text("SELECT * FROM no_such_table"))
        except sa.exc.DBAPIError:
            pass

    consumer = consumer_of(sql_store, sql_store.transactional(), stumble)
    assert outcomes(consumer.process_many(messages("1", "2"))) == ["processed", "processed"]
    assert sql_store.booked() == {"1": 1, "2": 1}


def test_a_connection_that_the_application_invalidates_is_not_used_again(sql_store):
    def give_up(message, session):
        if message.id == "1":
            session.connection().invalidate()

    consumer = consumer_of(sql_store, sql_store.transactional(), give_up)
    assert outcomes(consumer.process(message) for message in messages("1", "2")) == ["failed", "processed"]
    assert sql_store.booked() == {"2": 1}


@pytest.mark.parametrize(
    "ending",
    [
        Connection.close,
        Connection.invalidate,
        lambda connection: connection.connection.close(),
        lambda connection: connection.connection.invalidate(),
    ],
)
def test_a_connection_that_the_application_ends_after_the_commit_is_not_used_again(sql_store, ending):
    factory = sessionmaker(sql_store.engine())
    given = []
    sa.event.listen(factory, "after_commit", lambda _: [ending(given.pop()) for _ in given[:]])

    def keep(message, session):
        if message.id == "1":
            given.append(session.connection())

    consumer = consumer_of(sql_store, sql_store.transactional(factory), keep)
    assert outcomes(consumer.process(message) for message in messages("1", "2")) == ["processed", "processed"]
    assert not given
    assert sql_store.booked() == {"1": 1, "2": 1}


def test_a_thread_cannot_commit_while_another_one_prepares_the_engine(sql_store):
    """The first thread is stopped between the listeners that it adds to a new engine."""
    checker = sql_store.transactional(sql_store.engine())
    consumer = consumer_of(
        sql_store, checker, lambda _, session: session.execute(sa.text("COMMIT")), max_attempts=9
    )
    listening, go_on = threading.Event(), threading.Event()
    results = []

    def pause(frame, event, _argument):
        listens = event == "call" and frame.f_code is sa.event.listen.__code__
        if listens and frame.f_locals["identifier"] == "do_execute" and not listening.is_set():
            listening.set()
            go_on.wait(20)

    def first():
        sys.setprofile(pause)
        try:
            results.append(consumer.process(messages("1")[0]))
        finally:
            sys.setprofile(None)

    thread = threading.Thread(target=first)
    thread.start()
    assert listening.wait(20)
    results.append(consumer.process(messages("2")[0]))
    go_on.set()
    thread.join(20)
    assert [type(result.error) for result in results] == [TransactionEscapedError] * 2
    assert outcomes(results) == ["failed", "failed"]
    assert sql_store.booked() == {}
