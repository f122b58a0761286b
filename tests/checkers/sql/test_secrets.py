"""The values of a handler's statement are neither stored, nor logged, nor part of a dead letter's reason."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message, Registry
from idempotent.adapters.copies import reason_of
from idempotent.admin import KeyFilter
from idempotent.checkers import MemoryChecker

CARD = "4111-1111-1111"


@pytest.fixture
def cards(altered_sql_store):
    """A table in which each card is once, and the number of one is there."""
    table = f"{altered_sql_store.table}_cards"
    engine = altered_sql_store.admin_engine
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE TABLE {table} (card VARCHAR(40) PRIMARY KEY)"))
        connection.execute(sa.text(f"INSERT INTO {table} VALUES (:card)"), {"card": CARD})
    yield table
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP TABLE {table}"))


@pytest.mark.parametrize("kind", ["transactional", "leased", "memory"])
def test_a_statement_that_fails_leaves_its_values_nowhere(altered_sql_store, cards, kind, caplog):
    engine = altered_sql_store.engine()
    insert = sa.text(f"INSERT INTO {cards} VALUES (:card)")
    if kind == "transactional":
        checker = altered_sql_store.transactional()

        def pay(message, session: Session):
            session.execute(insert, {"card": CARD})
    else:
        checker = altered_sql_store.leased() if kind == "leased" else MemoryChecker()

        def pay(message):
            with engine.begin() as connection:
                connection.execute(insert, {"card": CARD})

    consumer = Registry().consumer("orders", checker=checker, max_attempts=1)(pay)
    result = consumer.process(Message("orders", id="1"))
    assert result.outcome.value == "dead"
    (record,) = checker.admin().list(KeyFilter())
    assert record.last_error.startswith("IntegrityError: ")
    again = consumer.process(Message("orders", id="1"))
    for text in (record.last_error, reason_of(result), str(again.error), reason_of(again), caplog.text):
        assert CARD not in text
    assert f"INSERT INTO {cards}" in reason_of(result)
