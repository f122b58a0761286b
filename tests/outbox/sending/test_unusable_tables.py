"""An outbox whose table is missing, or closed to the user, is no fault of the messages: they wait for it."""

import contextlib
import secrets
import threading

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from idempotent import Message, Outcome, Registry
from idempotent.errors import OutboxError
from tests.support.privileges import user_of_tables

INVOICE = Message("invoices", b"1")
HINT = "idempotent migrate upgrade"


@pytest.fixture
def handlers(outbox, sql_store):
    """Transactional handlers that send in several ways, by name."""

    def book(message, on):
        on.execute(sql_store.effects.insert().values(id=message.id))

    def at_the_commit(message, session: Session):
        book(message, session)
        outbox.send(session, INVOICE)

    def at_a_flush(message, session: Session):
        book(message, session)
        outbox.send(session, INVOICE)
        outbox.flush(session)

    def on_a_connection(message, connection: Connection):
        book(message, connection)
        outbox.send(connection, INVOICE)

    return {handler.__name__: handler for handler in (at_the_commit, at_a_flush, on_a_connection)}


WAYS = ["at_the_commit", "at_a_flush", "on_a_connection"]


@pytest.mark.parametrize("savepoints", [False, True])
@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_messages_wait_until_the_table_is_there(
    sql_store, handlers, tables, waiting, way, together, savepoints
):
    checker = sql_store.transactional(savepoints=savepoints)
    consumer = Registry().consumer("orders", group="g", checker=checker, max_attempts=1)(handlers[way])
    orders = [Message("orders", b"", id=str(number)) for number in range(together)]
    tables.waiting.drop(sql_store.admin_engine)
    for _ in range(3):
        results = consumer.process_many(orders)
        assert [result.outcome for result in results] == [Outcome.UNAVAILABLE] * together
        assert all(isinstance(result.error, OutboxError) and HINT in str(result.error) for result in results)
        assert sql_store.booked() == {}
    tables.waiting.create(sql_store.admin_engine)
    assert [result.outcome for result in consumer.process_many(orders)] == [Outcome.PROCESSED] * together
    assert sql_store.booked() == {order.id: 1 for order in orders}
    assert waiting() == ["1"] * together


@pytest.mark.parametrize("together", [1, 3])
def test_messages_of_a_leased_handler_wait_too(outbox, sql_store, tables, waiting, together):
    def handle(message):
        with Session(sql_store.admin_engine) as session, session.begin():
            outbox.send(session, INVOICE)

    checker = sql_store.leased()
    consumer = Registry().consumer("orders", group="g", checker=checker, max_attempts=1)(handle)
    orders = [Message("orders", b"", id=str(number)) for number in range(together)]
    tables.waiting.drop(sql_store.admin_engine)
    for _ in range(3):
        results = consumer.process_many(orders)
        assert [result.outcome for result in results] == [Outcome.UNAVAILABLE] * together
        assert all(HINT in str(result.error) for result in results)
    tables.waiting.create(sql_store.admin_engine)
    assert [result.outcome for result in consumer.process_many(orders)] == [Outcome.PROCESSED] * together
    assert waiting() == ["1"] * together


def test_a_handler_may_ignore_it(outbox, sql_store, tables, handlers):
    decorate = Registry().consumer(
        "orders", group="g", checker=sql_store.transactional(), idempotent_for=(OutboxError,)
    )
    tables.waiting.drop(sql_store.admin_engine)
    result = decorate(handlers["at_a_flush"]).process(Message("orders", b"", id="1"))
    assert result.outcome is Outcome.IGNORED


def test_a_session_without_a_handler_says_what_to_type(outbox, sql_store, tables):
    tables.waiting.drop(sql_store.admin_engine)
    with Session(sql_store.admin_engine) as session:
        outbox.send(session, Message("invoices", b"secret", headers={"h": "secret"}))
        with pytest.raises(OutboxError, match=HINT) as raised:
            session.commit()
    assert "secret" not in f"{raised.value} {raised.value.__cause__}"


@pytest.mark.parametrize("sql_store", ["postgres", "mysql"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_messages_wait_until_the_user_may_write(sql_store, handlers, tables, way):
    names = [sql_store.table, f"{sql_store.table}_failures", sql_store.effects.name]
    with user_of_tables(sql_store.admin_engine, f"u{secrets.token_hex(6)}", names) as url:
        engine = sa.create_engine(url)
        checker = sql_store.transactional(engine)
        consumer = Registry().consumer("orders", group="g", checker=checker, max_attempts=1)(handlers[way])
        for _ in range(2):
            result = consumer.process(Message("orders", b"", id="1"))
            assert result.outcome is Outcome.UNAVAILABLE
            assert isinstance(result.error, OutboxError)
            assert "lacks a right" in str(result.error)
        checker.close()
        engine.dispose()
    assert sql_store.booked() == {}


@pytest.mark.parametrize("sql_store", ["mysql"], indirect=True)
def test_a_deadlock_of_the_insert_that_a_handler_ignores_is_noticed(outbox, sql_store, tables, waiting):
    """The server has rolled back all that the handler did; what it does afterwards must not commit alone."""
    effects = sql_store.effects
    runs = []

    def handle(message, session: Session):
        runs.append(message.id)
        session.execute(effects.insert().values(id="before"))
        if len(runs) == 1:
            threading.Thread(target=wait_for_the_handler).start()
        outbox.send(session, INVOICE)
        with contextlib.suppress(DBAPIError):
            outbox.flush(session)
        session.execute(effects.insert().values(id="after"))

    def wait_for_the_handler():
        other.execute(sa.select(effects).where(effects.c.id == "before").with_for_update()).all()
        other.rollback()
        ended.set()

    consumer = Registry().consumer("orders", group="g", checker=sql_store.transactional())(handle)
    ended = threading.Event()
    with sql_store.admin_engine.connect() as other:
        # The server rolls back the one of the two that has written less, whichever of them comes second.
        other.execute(effects.insert(), [{"id": f"other {number}"} for number in range(100)])
        other.execute(sa.select(tables.waiting).with_for_update())
        result = consumer.process(Message("orders", b"", id="1"))
        assert ended.wait(60)
    assert result.outcome is Outcome.PROCESSED
    assert len(runs) == 2
    assert sql_store.booked() == {"before": 1, "after": 1}
    assert waiting() == ["1"]
