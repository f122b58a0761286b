"""A statement that ends the transaction without being the first word of what the handler sends."""

from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from idempotent import Message, Outcome
from tests.checkers.sql.booking import book, consumer_of, messages
from tests.support.stores import open_store

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
