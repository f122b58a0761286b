"""Whatever ends a handler, no transaction and no connection is left behind."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Outcome
from idempotent.claims import KeyStatus
from idempotent.errors import StoreUnavailableError
from idempotent.policy import ExceptionPolicy
from tests.guarantees.orders import ORDERS, consumer_of, message, outcomes


class Unshowable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_an_exception_that_cannot_be_shown_is_a_failure_like_others(store):
    def handle(message):
        raise Unshowable

    consumer = consumer_of(store.leased(), handle)
    result = consumer.process(message())
    assert (result.outcome, type(result.error)) == (Outcome.FAILED, Unshowable)
    assert consumer.process(message()).outcome is Outcome.FAILED


@pytest.mark.parametrize("together", [False, True])
def test_whatever_escapes_takes_its_transaction_with_it(sql_store, monkeypatch, together):
    engine = sql_store.engine(pool_size=1, max_overflow=0, pool_timeout=5)
    checker = sql_store.transactional(engine)

    def handle(message, session: Session):
        session.execute(sql_store.effects.insert().values(id=message.id))
        if buggy:
            raise LookupError

    consumer = consumer_of(checker, handle)
    buggy = True

    def fail(*_):
        raise RuntimeError("a bug of ours")

    with monkeypatch.context() as patch:
        patch.setattr(ExceptionPolicy, "classify", fail)
        with pytest.raises(RuntimeError):
            consumer.process_many([message("1"), message("2")]) if together else consumer.process(message())
    buggy = False
    assert engine.pool.checkedout() == 0
    assert outcomes(consumer.process_many([message("1"), message("2")])) == ["processed", "processed"]
    assert sql_store.booked() == {"1": 1, "2": 1}


def test_a_store_error_of_the_handler_is_its_own_and_leaves_nothing_open(sql_store):
    engine = sql_store.engine()

    def handle(message, session: Session):
        raise StoreUnavailableError("another store of the application")

    consumer = consumer_of(sql_store.transactional(engine), handle, on_missing_key="process")
    assert consumer.process(message(None)).outcome is Outcome.FAILED
    assert engine.pool.checkedout() == 0


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_a_transaction_ended_by_a_raw_cursor_loses_nothing_silently(sql_store, strict, together):
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite's driver begins no transaction by itself, so the plain check sees it")

    def handle(message, session: Session):
        session.execute(sql_store.effects.insert().values(id=message.id))
        if message.id == "2":
            session.connection().connection.dbapi_connection.commit()
        if message.id == "3":
            raise ConnectionError("so the group is undone")

    checker = sql_store.transactional(strict=strict)
    consumer = consumer_of(checker, handle, max_attempts=2)
    group = [message(name) for name in "1234"]
    results = consumer.process_many(group) if together else [consumer.process(one) for one in group]
    effects = sql_store.booked()
    for one, result in zip(group, results, strict=True):
        if result.outcome in (Outcome.PROCESSED, Outcome.DUPLICATE):
            assert effects.get(one.id) == 1, f"{one.id} was acknowledged without its effect"
        assert effects.get(one.id, 0) <= 1
    if together:
        assert "dead" in outcomes(results), "a person has to look"
        record = checker.admin().get(ORDERS.key("4"))
        assert record.status is KeyStatus.DEAD
        assert "effect unknown" in record.last_error


def test_a_comment_does_not_hide_a_commit(sql_store):
    def handle(message, session: Session):
        session.execute(sql_store.effects.insert().values(id=message.id))
        session.execute(sa.text("  /* app=shop */ -- twice\n COMMIT"))

    consumer = consumer_of(sql_store.transactional(), handle, max_attempts=1)
    assert consumer.process(message()).outcome is Outcome.DEAD
    assert sql_store.booked() == {}


def test_a_pool_without_a_free_connection_is_an_unavailable_store(sql_store):
    asked = []

    class Pool(sa.QueuePool):
        def connect(self):
            asked.append(1)
            return super().connect()

    engine = sql_store.engine(poolclass=Pool, pool_size=1, max_overflow=0, pool_timeout=0.2)

    def handle(message, session: Session):
        pass

    consumer = consumer_of(sql_store.transactional(engine), handle, on_missing_key="process")
    with engine.connect():
        asked.clear()
        for name in ("1", None):
            result = consumer.process(message(name))
            assert (result.outcome, type(result.error)) == (Outcome.UNAVAILABLE, StoreUnavailableError)
            assert "raise the engine's pool_size" in str(result.error)
    assert len(asked) == 2  # each has waited for pool_timeout once
