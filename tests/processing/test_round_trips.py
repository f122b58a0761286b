"""How many statements a group costs."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Outcome, Registry
from idempotent.claims import ClaimRequest
from idempotent.stores.sql import cursor
from tests.processing.shop import Shop, messages, outcomes


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What kind of statements the library sends by itself: a change may begin with WITH or SET STATEMENT."""
    sent: list[str] = []

    def noting(function: Callable) -> Callable:
        def noted(connection, statement, params=(), **options):
            changes = [word for word in ("INSERT INTO", "UPDATE", "DELETE FROM") if f"{word} " in statement]
            sent.append((changes[0] if changes else statement).split()[0].upper())
            return function(connection, statement, params, **options)

        return noted

    for name in ("execute", "insert_id", "query"):
        original = getattr(cursor, name)
        for module in [m for n, m in list(sys.modules.items()) if n.startswith("idempotent.")]:
            if getattr(module, name, None) is original:
                monkeypatch.setattr(module, name, noting(original))
    return sent


def hundred(prefix):
    return messages(*(f"{prefix}{number}" for number in range(100)))


def test_a_leased_group_is_one_insert_and_one_update(sql_store, statements):
    consumer = Shop(sql_store, "leased").consumer()
    consumer.process_many(hundred("warm"))
    statements.clear()
    assert set(outcomes(consumer.process_many(hundred("a")))) == {"processed"}
    fresh = ["INSERT", "UPDATE"]
    assert [word for word in statements if word != "SELECT"] == fresh, statements
    assert statements.count("SELECT") <= 1, "one ownership read, where there is no RETURNING"
    statements.clear()
    assert set(outcomes(consumer.process_many(hundred("a")))) == {"duplicate"}
    assert [word for word in statements if word != "SELECT"] == ["INSERT"]
    assert statements.count("SELECT") <= 1


def test_a_key_of_a_dead_process_is_looked_at_and_taken_over(sql_store, statements):
    shop = Shop(sql_store, "leased")
    consumer = shop.consumer()
    consumer.process(messages("warm")[0])
    dead = shop.another_checker().protocol
    dead.abandon(dead.claim(ClaimRequest(consumer.key_of("a"))).claim)
    sql_store.age(3600)
    statements.clear()
    assert consumer.process(messages("a")[0]).outcome is Outcome.PROCESSED
    assert [word for word in statements if word != "SELECT"] == ["INSERT", "INSERT", "UPDATE", "UPDATE"]


@pytest.mark.parametrize("savepoints", [False, True])
def test_a_transactional_group_is_one_insert_and_one_commit(sql_store, statements, savepoints):
    engine = sql_store.engine()
    checker = sql_store.transactional(engine, savepoints=savepoints)
    committed = []
    sa.event.listen(engine, "commit", committed.append)

    @Registry().consumer("orders", checker=checker)
    def consumer(message, session: Session):
        pass

    consumer.process_many(hundred("warm"))
    statements.clear()
    committed.clear()
    assert set(outcomes(consumer.process_many(hundred("a")))) == {"processed"}
    assert [word for word in statements if word in ("INSERT", "UPDATE", "DELETE")] == ["INSERT"], statements
    # BEGIN IMMEDIATE on SQLite; reading the owners back where there is no RETURNING.
    assert len(statements) <= 2, statements
    assert len(committed) == 1
