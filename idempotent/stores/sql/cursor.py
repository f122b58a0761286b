"""Run one statement on a driver connection, without SQLAlchemy's cost per execution."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final, TypeAlias

NUMBERED: Final = "$"
"""The marker of drivers that take the server's own `$1`, `$2`, ..."""
Row: TypeAlias = tuple[Any, ...]


class DriverConnection:
    """A driver's connection with a cursor that is kept: making and closing one each time takes long.

    Args:
        raw: the driver's own connection.

    Attributes:
        raw: the same.
        cursor: for one statement after the other.
        keeps_plans: whether it prepares a statement that it sees often, as psycopg does.
    """

    __slots__ = ("cursor", "keeps_plans", "raw")

    def __init__(self, raw: Any) -> None:
        """Make its cursor."""
        self.raw: Final = raw
        psycopg = sys.modules.get("psycopg")
        self.keeps_plans: Final = psycopg is not None and isinstance(raw, psycopg.Connection)
        self.cursor: Final = self.new_cursor()

    def new_cursor(self) -> Any:
        """Another cursor, for a statement whose rows are not worth keeping until the next one."""
        if self.keeps_plans:
            # Its other cursors read a statement with `%s` through in Python each time: of a large one that takes
            # longer than to run it.
            return sys.modules["psycopg"].RawCursor(self.raw)
        return self.raw.cursor()


def execute(
    connection: DriverConnection, statement: str, params: Sequence[Any] = (), *, many: bool = False
) -> int:
    """Run a statement that changes rows; `many`: it names several keys. Returns how many it matched."""
    if many:
        with closing(connection.new_cursor()) as cursor:
            _execute_for_many(connection, cursor, statement, params)
            return int(cursor.rowcount)
    cursor = connection.cursor
    cursor.execute(statement, params)
    return int(cursor.rowcount)


def insert_id(connection: DriverConnection, statement: str, params: Sequence[Any] = ()) -> int:
    """Run an INSERT. Returns what it gave to LAST_INSERT_ID, which comes with the answer."""
    cursor = connection.cursor
    cursor.execute(statement, params)
    return int(cursor.lastrowid)


def query(
    connection: DriverConnection, statement: str, params: Sequence[Any] = (), *, many: bool = False
) -> Sequence[Row]:
    """Run a statement that returns rows; `many`: it names several keys."""
    if many:
        with closing(connection.new_cursor()) as cursor:
            _execute_for_many(connection, cursor, statement, params)
            return list(cursor.fetchall())
    cursor = connection.cursor
    cursor.execute(statement, params)
    rows: Sequence[Row] = cursor.fetchall()
    return rows


def _execute_for_many(
    connection: DriverConnection, cursor: Any, statement: str, params: Sequence[Any]
) -> None:
    if connection.keeps_plans:
        # Of a prepared statement PostgreSQL keeps the plan. Made while the table was small, it reads all of the table
        # for several keys, until the table is analyzed: for up to a minute, in which it has grown.
        cursor.execute(statement, params, prepare=False)
    else:
        cursor.execute(statement, params)
