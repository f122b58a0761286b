"""However a handler leaves its savepoint or its transaction: PROCESSED with its row, or not PROCESSED without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import product
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.orm import registry as mappers

from idempotent import Message, Outcome, Registry
from tests.checkers.sql.booking import messages
from tests.support.stores import SQL

IDS = ("before", "it", "after")


class Row:
    def __init__(self, id: str) -> None:
        self.id = id


class Missing(Row):
    """A row of a table that is not there."""


@pytest.fixture(autouse=True)
def mapped(sql_store):
    """Maps `Row` to the effects, and `Missing` to nothing."""
    mapper = mappers()
    metadata = sa.MetaData()
    effects = sql_store.effects.to_metadata(metadata)
    missing = sa.Table("no_such_table", metadata, sa.Column("id", sa.String(50), primary_key=True))
    mapper.map_imperatively(Row, effects, primary_key=[effects.c.id])
    mapper.map_imperatively(Missing, missing)
    yield
    mapper.dispose()


def fail_to_flush(session: Session) -> None:
    session.add(Missing("x"))
    session.flush()


def core_error(session: Session) -> None:
    session.execute(sa.text("SELECT * FROM no_such_table"))


def nested_of(session: Session) -> Any:
    return session.get_nested_transaction() or session.begin_nested()


def nested_on_connection(session: Session) -> Any:
    """The savepoint that is there, or one of the handler's own behind what it wrote."""
    if (nested := session.connection().get_nested_transaction()) is None:
        session.flush()
        nested = session.connection().begin_nested()
    return nested


def savepoint_of(session: Session) -> str:
    return str(nested_on_connection(session)._savepoint)


def in_own_savepoint(session: Session, what: Callable[[Session], None]) -> None:
    with suppress(sa.exc.DBAPIError), session.begin_nested():
        what(session)


def by_hand(session: Session, statement: str) -> None:
    name = savepoint_of(session)
    session.connection().connection.cursor().execute(f"{statement} SAVEPOINT {name}")


# Each way is one line, and its exceptions are ignored. With savepoints=True it meets the savepoint of the checker.
WAYS: dict[str, Callable[[Session], object]] = {
    "nothing": lambda session: None,
    "failed flush": fail_to_flush,
    "failed flush, twice": lambda session: (in_own_savepoint(session, fail_to_flush), fail_to_flush(session)),
    "failed flush in a savepoint of its own": lambda session: in_own_savepoint(session, fail_to_flush),
    "Core error": core_error,
    "Core error in a savepoint of its own": lambda session: in_own_savepoint(session, core_error),
    "Core error, then failed flush": lambda session: (
        suppressed(core_error, session),
        fail_to_flush(session),
    ),
    "rollback of the savepoint": lambda session: nested_of(session).rollback(),
    "commit of the savepoint": lambda session: nested_of(session).commit(),
    "close of the savepoint": lambda session: nested_of(session).close(),
    "savepoint left open": lambda session: session.begin_nested(),
    "savepoint of the connection, rolled back": lambda session: nested_on_connection(session).rollback(),
    "savepoint of the connection, committed": lambda session: nested_on_connection(session).commit(),
    "ROLLBACK TO": lambda session: session.execute(sa.text(f"ROLLBACK TO SAVEPOINT {savepoint_of(session)}")),
    "RELEASE": lambda session: session.execute(sa.text(f"RELEASE SAVEPOINT {savepoint_of(session)}")),
    "RELEASE by hand": lambda session: by_hand(session, "RELEASE"),
    "session.rollback()": lambda session: session.rollback(),
    "failed flush, session.rollback()": lambda session: (
        suppressed(fail_to_flush, session),
        session.rollback(),
    ),
    "session.commit()": lambda session: session.commit(),
    "session.close()": lambda session: session.close(),
    "session.reset()": lambda session: session.reset(),
    "session.invalidate()": lambda session: session.invalidate(),
    "connection.rollback()": lambda session: session.connection().rollback(),
    "connection.commit()": lambda session: session.connection().commit(),
    "connection.close()": lambda session: session.connection().close(),
    "connection.invalidate()": lambda session: session.connection().invalidate(),
    "rollback() of the driver": lambda session: (
        session.connection().connection.driver_connection.rollback()  # of asyncio: not awaited
        if not session.connection().dialect.is_async
        else session.connection().connection.rollback()
    ),
}
# When the row of the message is written: before it, perhaps not sent yet, after it, or after it on a connection that
# was asked for before.
WRITES = ("sent", "pending", "afterwards", "afterwards, on the connection")
ENDS = ("returns", "raises")


class OnConnection:
    """What the ways want of a Session, as a handler that takes a Connection has it. What it lacks does nothing."""

    def __init__(self, connection: Connection, effects: sa.Table) -> None:
        self._connection = connection
        self._effects = effects
        self.execute = connection.execute
        self.begin_nested = connection.begin_nested
        self.get_nested_transaction = connection.get_nested_transaction

    def connection(self) -> Connection:
        return self._connection

    def add(self, row: Row) -> None:
        table = "no_such_table" if isinstance(row, Missing) else self._effects.name
        self._connection.execute(sa.text(f"INSERT INTO {table} (id) VALUES (:id)"), {"id": row.id})

    def flush(self) -> None:
        pass


def suppressed(what: Callable[[Session], object], session: Session) -> None:
    with suppress(Exception):
        what(session)


def run_way(session: Session, effects: sa.Table, way: str, writes: str, end: str) -> None:
    connection = session.connection()
    if writes in ("sent", "pending"):
        session.add(Row("it"))
    if writes == "sent":
        session.flush()
    suppressed(WAYS[way], session)
    if writes == "afterwards":
        session.add(Row("it"))
    if writes == "afterwards, on the connection":
        connection.execute(effects.insert().values(id="it"))
    if end == "raises":
        raise ValueError("no such customer")


def consumer_of(store: Any, checker: Any, kind: str, case: list[str]) -> Any:
    """A consumer whose handler does what `case` says at the moment: way, writes, end."""
    effects = store.effects

    def handle(message: Message, session: Any) -> None:
        if message.id == "it":
            run_way(session, effects, *case)
        else:
            session.add(Row(str(message.id)))

    def plain(message: Message, session: Session) -> None:
        handle(message, session)

    def batch(group: list[Message], session: Session) -> None:
        for message in group:
            handle(message, session)

    def on_connection(message: Message, connection: Connection) -> None:
        handle(message, OnConnection(connection, effects))

    async def awaiting(message: Message, session: AsyncSession) -> None:
        await session.run_sync(lambda within: handle(message, within))

    handlers = {"session": plain, "connection": on_connection, "batch": batch, "async": awaiting}
    options = {"batch": True} if kind == "batch" else {}
    return Registry().consumer("orders", checker=checker, max_attempts=9, **options)(handlers[kind])


def delivered(consumer: Any, loop: asyncio.Runner | None, *, together: bool) -> dict[str, Outcome]:
    orders = messages(*IDS) if together else messages("it")

    async def awaited() -> Any:
        return await consumer.process_many(orders)

    results = consumer.process_many(orders) if loop is None else loop.run(awaited())
    return {str(order.id): result.outcome for order, result in zip(orders, results, strict=True)}


def wrong(store: Any, case: list[str], told: dict[str, Outcome]) -> Iterator[str]:
    booked = store.booked()
    for name, outcome in told.items():
        times = booked.get(name, 0)
        if times != (outcome is Outcome.PROCESSED):
            yield f"{case}: {name} is {outcome.value} and has {times} rows"
        if name != "it" and outcome is not Outcome.PROCESSED:
            yield f"{case}: {name} beside it is {outcome.value}"
    if case[2] == "raises" and told["it"] is Outcome.PROCESSED:
        yield f"{case}: raised, and is processed"


CASES = list(product(WAYS, WRITES, ENDS))
OPTIONS = [{}, {"strict": True}, {"savepoints": True}, {"savepoints": True, "strict": True}]


def demand(store: Any, kind: str, options: Any, *, together: bool) -> None:
    """Each database tries another third of the cases."""
    engine = store.async_engine() if kind == "async" else None
    case: list[str] = []
    consumer = consumer_of(store, store.transactional(engine, **options), kind, case)
    found: list[str] = []
    with ExitStack() as stack:
        loop = stack.enter_context(asyncio.Runner()) if kind == "async" else None
        for case[:] in CASES[SQL.index(store.kind) :: 3]:
            found += wrong(store, case, delivered(consumer, loop, together=together))
            with store.admin_engine.begin() as connection:
                for table in (store.effects.name, store.table, f"{store.table}_failures"):
                    connection.execute(sa.text(f"DELETE FROM {table}"))
    assert not found, "\n".join(found)


def test_a_message_of_a_group_is_processed_with_its_row_or_neither(sql_store):
    demand(sql_store, "session", {"savepoints": True}, together=True)


def test_savepoints_of_a_handler_do_not_give_its_group_up(sql_store):
    """The names of some begin with that of the checker's."""
    runs = []

    @Registry().consumer("orders", checker=sql_store.transactional(savepoints=True))
    def consumer(message: Message, session: Session) -> None:
        runs.append(message.id)
        for number in range(12):
            with suppress(ValueError), session.begin_nested():
                session.add(Row(f"{message.id} {number}"))
                session.flush()
                if number % 2:
                    raise ValueError("no such customer")

    results = consumer.process_many(messages(*IDS))
    assert [result.outcome for result in results] == [Outcome.PROCESSED] * 3
    assert runs == list(IDS)
    assert sql_store.booked() == {f"{name} {number}": 1 for name in IDS for number in range(0, 12, 2)}


@pytest.mark.parametrize("way", ["commit of the savepoint", "RELEASE by hand", "failed flush", "nothing"])
def test_an_interrupt_passes_although_the_savepoint_has_gone(sql_store, way):
    interrupts = [KeyboardInterrupt()]

    @Registry().consumer("orders", checker=sql_store.transactional(savepoints=True))
    def consumer(message: Message, session: Session) -> None:
        session.add(Row(str(message.id)))
        if message.id == "it" and interrupts:
            suppressed(WAYS[way], session)
            session.add(Row("stray"))
            raise interrupts.pop()

    with pytest.raises(KeyboardInterrupt):
        consumer.process_many(messages(*IDS))
    assert sql_store.booked() == {}
    results = consumer.process_many(messages(*IDS))
    assert [result.outcome for result in results] == [Outcome.PROCESSED] * 3
    assert sql_store.booked() == dict.fromkeys(IDS, 1)


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True], ids=["alone", "group"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "plain")
@pytest.mark.parametrize("kind", ["session", "connection", "batch", "async"])
def test_a_message_is_processed_with_its_row_or_neither(sql_store, kind, options, together):
    if kind == "async" and sql_store.kind == "sqlite":
        pytest.skip("it has no driver that awaits")
    demand(sql_store, kind, options, together=together)
