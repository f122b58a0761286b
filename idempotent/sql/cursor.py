"""Run one statement on a driver connection, without SQLAlchemy's cost per execution."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, TypeAlias

DriverConnection: TypeAlias = Any
Row: TypeAlias = tuple[Any, ...]


def execute(connection: DriverConnection, statement: str, params: Sequence[Any] = ()) -> int:
    """Run a statement that changes rows. Returns how many it matched."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement, params)
        return int(cursor.rowcount)


def insert_id(connection: DriverConnection, statement: str, params: Sequence[Any] = ()) -> int:
    """Run an INSERT. Returns what it gave to LAST_INSERT_ID, which comes with the answer."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement, params)
        return int(cursor.lastrowid)


def query(connection: DriverConnection, statement: str, params: Sequence[Any] = ()) -> list[Row]:
    """Run a statement that returns rows."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement, params)
        return list(cursor.fetchall())
