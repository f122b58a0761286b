"""How a handler may try to end its transaction by itself: a table that tests walk through, and their page shows."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tests.checkers.sql.booking import raw
from tests.support.stores import SQL


class Fate(Enum):
    """What becomes of the message, and of what its handler wrote before."""

    FAILED = ("`FAILED`", "nothing is written")
    """Also if the handler swallows the error, or raises one that its consumer ignores: it may believe it committed."""
    UNDONE = (
        "`FAILED`, or `IGNORED` if the handler then raises what the consumer ignores",
        "nothing is written",
    )
    DEAD = ('`DEAD`, "effect unknown", and its group with it', "what came before the COMMIT is written")


class Way(NamedTuple):
    """One way to try.

    Attributes:
        function: does it; called with the handler's Session.
        stores: the kinds of store on which it is tried.
    """

    function: Callable[[Session], object]
    stores: tuple[str, ...] = SQL


class Ending(NamedTuple):
    """A row of the table.

    Attributes:
        tries: what the handler does.
        noticed: how, and when, the checker notices it.
        fate: what becomes of the message.
        ways: the ways to do it, by name.
    """

    tries: str
    noticed: str
    fate: Fate
    ways: dict[str, Way]


def text(statement: str) -> Callable[[Session], object]:
    return lambda session: session.execute(sa.text(statement))


def driver(session: Session):
    return session.connection().connection.driver_connection


def by_cursor(statement: str) -> Callable[[Session], object]:
    return lambda session: raw(session, statement)


def elsewhere(session: Session) -> None:
    other = sa.create_engine(session.connection().engine.url, poolclass=NullPool)
    try:
        session.execute(sa.text("SELECT 1"), bind_arguments={"bind": other})
    finally:
        other.dispose()


def leave_driver_with(session: Session) -> None:
    """Psycopg commits and closes at its end, sqlite3 commits."""
    with driver(session):
        pass


def leave_with(session: Session) -> None:
    with session:
        pass


REFUSED = Ending(
    "sends `COMMIT`, `ROLLBACK` or `BEGIN`, calls `commit()`; on MySQL and MariaDB also sends what commits implicitly, "
    "as `CREATE TABLE` does",
    "refused before it is sent",
    Fate.FAILED,
    {
        "session.commit": Way(lambda session: session.commit()),
        "connection.commit": Way(lambda session: session.connection().commit()),
        "COMMIT": Way(text("COMMIT")),
        "COMMIT of the driver": Way(lambda session: session.connection().exec_driver_sql("COMMIT")),
        "COMMIT without parameters": Way(
            lambda session: (
                session.connection().execution_options(no_parameters=True).exec_driver_sql("COMMIT")
            )
        ),
        "ROLLBACK": Way(text("  rollback")),
        "BEGIN": Way(text("BEGIN")),
        "implicit commit": Way(text("CREATE TABLE no_such_table (a INTEGER)"), ("mysql",)),
    },
)
ELSEWHERE = Ending(
    "has its Session send a statement on another connection (`binds=`, `bind_arguments=`, `get_bind()`)",
    "refused before it is sent",
    Fate.FAILED,
    {"bind_arguments": Way(elsewhere)},
)
DISCARDED = Ending(
    "rolls back, closes, resets or invalidates its Session or connection, as `with session:` does at its end",
    "when it returns",
    Fate.UNDONE,
    {
        "rollback": Way(lambda session: session.rollback()),
        "close": Way(lambda session: session.close()),
        "reset": Way(lambda session: session.reset()),
        "invalidate": Way(lambda session: session.invalidate()),
        "end of with": Way(leave_with),
        "connection.rollback": Way(lambda session: session.connection().rollback()),
        "connection.close": Way(lambda session: session.connection().close()),
    },
)
ROLLED_BACK = Ending(
    "rolls back on the driver's connection, or in a text that begins with another word (`SELECT 1; ROLLBACK`)",
    "its key is read before COMMIT, in the transaction and on another connection: two round trips",
    Fate.UNDONE,
    {
        "cursor ROLLBACK": Way(by_cursor("ROLLBACK")),
        "driver rollback()": Way(lambda session: driver(session).rollback()),
        "hidden ROLLBACK": Way(text("SELECT 1; ROLLBACK"), ("postgres",)),
        "ROLLBACK in a comment": Way(text("/*! ROLLBACK */"), ("mysql",)),
    },
)
COMMITTED = Ending(
    "commits there, or calls a procedure that commits",
    "the same",
    Fate.DEAD,
    {
        "cursor COMMIT": Way(by_cursor("COMMIT")),
        "driver commit()": Way(lambda session: driver(session).commit()),
        "driver with": Way(leave_driver_with, ("postgres", "sqlite")),
        "hidden COMMIT": Way(text("SELECT 1; COMMIT"), ("postgres",)),
        "END behind comments": Way(text("/* a /* b */ c */ END"), ("postgres",)),
        "EXECUTE in a block": Way(
            text("IF 1 THEN EXECUTE IMMEDIATE CONCAT('COM', 'MIT'); END IF"), ("mysql",)
        ),
        "COMMIT in a comment": Way(text("/*! COMMIT */"), ("mysql",)),
    },
)
ABORTED = Ending(
    "ignores an error after which PostgreSQL refuses all statements",
    "when it returns",
    Fate.UNDONE,
    {"failed statement": Way(text("SELECT * FROM no_such_table"), ("postgres",))},
)
TABLE = (REFUSED, ELSEWHERE, DISCARDED, ROLLED_BACK, COMMITTED, ABORTED)


def shown():
    """The table as its page shows it."""
    yield "| a handler | how it is noticed | the message | its effect |"
    yield "|---|---|---|---|"
    for row in TABLE:
        yield f"| {row.tries} | {row.noticed} | {' | '.join(row.fate.value)} |"
