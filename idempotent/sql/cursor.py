"""Run one statement on a driver connection, without SQLAlchemy's cost per execution."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final, TypeAlias

NUMBERED: Final = "$"
"""The marker of drivers that take the server's own `$1`, `$2`, ..."""
DriverConnection: TypeAlias = Any
Row: TypeAlias = tuple[Any, ...]


def execute(
    connection: DriverConnection, statement: str, params: Sequence[Any] = (), *, many: bool = False
) -> int:
    """Run a statement that changes rows; `many`: it names several keys. Returns how many it matched."""
    with closing(_cursor(connection)) as cursor:
        cursor.execute(statement, params, **_options(cursor, many=many))
        return int(cursor.rowcount)


def insert_id(connection: DriverConnection, statement: str, params: Sequence[Any] = ()) -> int:
    """Run an INSERT. Returns what it gave to LAST_INSERT_ID, which comes with the answer."""
    with closing(_cursor(connection)) as cursor:
        cursor.execute(statement, params)
        return int(cursor.lastrowid)


def query(
    connection: DriverConnection, statement: str, params: Sequence[Any] = (), *, many: bool = False
) -> list[Row]:
    """Run a statement that returns rows; `many`: it names several keys."""
    with closing(_cursor(connection)) as cursor:
        cursor.execute(statement, params, **_options(cursor, many=many))
        return list(cursor.fetchall())


def _cursor(connection: DriverConnection) -> Any:
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(connection, psycopg.Connection):
        # Its other cursors read a statement with `%s` through in Python each time: of a large one that takes longer
        # than to run it.
        return psycopg.RawCursor(connection)
    return connection.cursor()


def _options(cursor: Any, *, many: bool) -> dict[str, Any]:
    # Of a prepared statement PostgreSQL keeps the plan. Made while the table was small, it reads all of the table for
    # several keys, until the table is analyzed: for up to a minute, in which it has grown.
    return {"prepare": False} if many and type(cursor).__module__.startswith("psycopg") else {}
