"""What the database undid is never committed."""

from __future__ import annotations

from contextlib import contextmanager, suppress

import pytest
import sqlalchemy as sa

from idempotent import Message, Outcome, current_claim
from idempotent.errors import TransactionEscapedError
from tests.checkers.sql.booking import MODES, book, consumer_of, keys, messages, only, outcomes, raw


def signal(session, number, text, state="HY000"):
    """Raise an error of MySQL's."""
    session.execute(sa.text(f"SIGNAL SQLSTATE '{state}' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = '{text}'"))


@contextmanager
def procedure(store, body):
    name = f"{store.table}_p"
    with store.engine().connect() as connection:
        connection.execute(sa.text(f"CREATE PROCEDURE {name}() BEGIN {body} END"))
        try:
            yield sa.text(f"CALL {name}()")
        finally:
            connection.execute(sa.text(f"DROP PROCEDURE {name}"))


# A handler that goes on after the database undid its transaction


@pytest.mark.parametrize("mode", MODES)
def test_sqlites_on_conflict_rollback_is_not_overlooked(altered_sql_store, mode):
    only(altered_sql_store, "sqlite")
    store = altered_sql_store
    with store.admin_engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE UNIQUE INDEX u ON {store.effects.name} (id)")
        connection.execute(store.effects.insert().values(id="taken"))

    def stumble(message, session):
        if message.id == "2":
            with suppress(sa.exc.IntegrityError):
                session.execute(store.effects.insert().prefix_with("OR ROLLBACK").values(id="taken"))
            book(store, session, Message("orders", id="goes on"))

    checker = store.transactional(**mode)
    consumer = consumer_of(store, checker, stumble, max_attempts=2)
    results = consumer.process_many(messages("1", "2", "3"))
    assert outcomes(results) == ["processed", "failed", "processed"]
    assert isinstance(results[1].error, TransactionEscapedError)
    assert consumer.process(messages("2")[0]).outcome is Outcome.DEAD
    assert store.booked() == {"taken": 1, "1": 1, "3": 1}
    assert keys(checker) == {"1", "2", "3"}


@pytest.mark.parametrize("mode", MODES)
def test_an_error_after_which_mysql_rolled_back_is_not_overlooked(sql_store, mode):
    only(sql_store, "mysql")

    def stumble(message, session):
        if message.id == "2":
            raw(session, "ROLLBACK")
            with suppress(sa.exc.DBAPIError):
                signal(session, 1206, "The total number of locks exceeds the lock table size")
            book(sql_store, session, Message("orders", id="goes on"))

    checker = sql_store.transactional(**mode)
    consumer = consumer_of(sql_store, checker, stumble, max_attempts=2)
    assert outcomes(consumer.process_many(messages("1", "2", "3"))) == ["processed", "failed", "processed"]
    assert consumer.process(messages("2")[0]).outcome is Outcome.DEAD
    assert sql_store.booked() == {"1": 1, "3": 1}


@pytest.mark.parametrize("mode", MODES)
def test_a_procedure_that_rolls_back_is_not_overlooked(sql_store, mode):
    only(sql_store, "mysql")
    checker = sql_store.transactional(**mode)
    with procedure(sql_store, "ROLLBACK;") as call:

        def handle(message, session):
            if message.id == "2":
                session.execute(call)
                book(sql_store, session, Message("orders", id="goes on"))

        consumer = consumer_of(sql_store, checker, handle, max_attempts=2)
        results = consumer.process_many(messages("1", "2", "3"))
    assert outcomes(results) == ["processed", "failed", "processed"]
    assert isinstance(results[1].error, TransactionEscapedError)
    assert sql_store.booked() == {"1": 1, "3": 1}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hidden", [False, True])
def test_a_procedure_that_commits_is_not_overlooked(sql_store, mode, hidden):
    only(sql_store, "mysql")
    checker = sql_store.transactional(**mode)
    with procedure(sql_store, "COMMIT;") as call:

        def handle(message, session):
            # MySQL has no EXECUTE IMMEDIATE.
            for statement in (f"PREPARE hidden FROM '{call}'", "EXECUTE hidden") if hidden else (str(call),):
                session.execute(sa.text(statement))
            book(sql_store, session, Message("orders", id="goes on"))

        consumer = consumer_of(sql_store, checker, handle)
        result = consumer.process(messages("1")[0])
    assert result.outcome is Outcome.DEAD, "what it had written is there, and the rest is not"
    assert isinstance(result.error, TransactionEscapedError)
    assert sql_store.booked() == {"1": 1}
    assert keys(checker) == {"1"}


def test_a_procedure_that_leaves_the_transaction_alone_may_be_called(sql_store):
    only(sql_store, "mysql")
    checker = sql_store.transactional()
    with procedure(sql_store, f"INSERT INTO {sql_store.effects.name} VALUES ('called');") as call:
        consumer = consumer_of(sql_store, checker, lambda _, session: session.execute(call))
        assert outcomes(consumer.process_many(messages("1", "2", "1"))) == [
            "processed",
            "processed",
            "duplicate",
        ]
    assert sql_store.booked() == {"1": 1, "2": 1, "called": 2}


# What another transaction has not committed


def test_a_key_that_may_still_be_rolled_back_is_not_taken_for_committed(sql_store):
    """With the engine in READ UNCOMMITTED, where a lost answer to COMMIT is looked up."""
    only(sql_store, "mysql", "postgres")
    checker = sql_store.transactional(sql_store.engine(isolation_level="READ UNCOMMITTED"))
    seen, levels = [], []

    def look(message, session):
        levels.append(session.connection().get_isolation_level())
        seen.append(keys(checker))
        (claim,) = checker.store.connections.run(checker._recorder.stored, [current_claim()]) or {None}
        seen.append(claim)

    assert consumer_of(sql_store, checker, look).process(messages("1")[0]).outcome is Outcome.PROCESSED
    assert levels == ["READ UNCOMMITTED"], (
        "the handler's transaction has the level that the application chose"
    )
    assert seen == [set(), None]


# A savepoint that a handler leaves open


@pytest.mark.parametrize("mode", MODES)
def test_a_savepoint_that_a_handler_left_open_is_committed(sql_store, mode):
    def handle(message, session):
        session.begin_nested()
        book(sql_store, session, Message("orders", id=f"in the savepoint of {message.id}"))

    consumer = consumer_of(sql_store, sql_store.transactional(**mode), handle)
    assert outcomes([consumer.process(messages("1")[0])]) == ["processed"]
    assert outcomes(consumer.process_many(messages("2", "3"))) == ["processed", "processed"]
    assert sum(sql_store.booked().values()) == 6
