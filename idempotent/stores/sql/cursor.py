"""Run one statement on a driver connection, without SQLAlchemy's overhead for each execution."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final, TypeAlias

NUMBERED: Final = "$"
"""The marker of drivers that accept the server's own `$1`, `$2`, ..."""
Row: TypeAlias = tuple[Any, ...]
_READS: Final = ("SELECT", "(SELECT")
# pgpool-II asks a replica also in a transaction that has changed nothing yet, but not if a comment comes first.
_AT_THE_PRIMARY: Final = "/* at the primary */ "
_PQTRANS_IDLE: Final = 0
_IN_TRANSACTION: Final = 1
_AUTOCOMMIT: Final = 2


class DriverConnection:
    """A driver's connection with a cursor that is reused: creating and closing one for each statement is slow.

    Args:
        raw: the driver's own connection, or an `AwaitedConnection` around it.

    Attributes:
        raw: the driver's own connection.
        cursor: the cursor for all statements that name one key.
        keeps_plans: whether the driver prepares frequent statements, as psycopg does.
        is_sqlite: whether it is one to an SQLite file.
        statement_limit: the longest statement that the server takes, in bytes; None: not asked yet.
        answer_s: see `limit_answer`.
    """

    __slots__ = ("_is_psycopg", "answer_s", "cursor", "is_sqlite", "keeps_plans", "raw", "statement_limit")

    def __init__(self, raw: Any) -> None:
        """Create the cursor."""
        self.raw: Final = raw
        psycopg = sys.modules.get("psycopg")
        self._is_psycopg: Final = psycopg is not None and isinstance(raw, psycopg.Connection)
        self.keeps_plans: Final[bool] = self._is_psycopg or getattr(raw, "keeps_plans", False)
        sqlite3 = sys.modules.get("sqlite3")
        self.is_sqlite: Final = sqlite3 is not None and isinstance(raw, sqlite3.Connection)
        self.cursor: Final = self.new_cursor()
        self.statement_limit: int | None = None
        self.answer_s: float | None = None

    def new_cursor(self) -> Any:
        """Another cursor, for a statement whose rows should not stay in memory until the next statement."""
        if self._is_psycopg:
            # psycopg's other cursors search each statement for `%s` in Python: for a large one that takes longer than
            # to run it.
            return sys.modules["psycopg"].RawCursor(self.raw)
        return self.raw.cursor()

    @property
    def reads_by_itself(self) -> bool:
        """Whether a SELECT would now be a transaction of its own, which a proxy may send to a replica."""
        if self.is_sqlite:
            return False
        if self.keeps_plans:
            return bool(self.raw.autocommit and self.raw.pgconn.transaction_status == _PQTRANS_IDLE)
        return bool(self.raw.server_status & (_IN_TRANSACTION | _AUTOCOMMIT) == _AUTOCOMMIT)


def execute(
    connection: DriverConnection, statement: str, params: Sequence[Any] = (), *, many: bool = False
) -> int:
    """Run a statement that changes rows; `many`: it names several keys. Returns the number of matched rows."""
    if many:
        with closing(connection.new_cursor()) as cursor:
            _execute_for_many(connection, cursor, statement, params)
            return int(cursor.rowcount)
    cursor = connection.cursor
    cursor.execute(statement, params)
    return int(cursor.rowcount)


def insert_id(connection: DriverConnection, statement: str, params: Sequence[Any] = ()) -> int:
    """Run an INSERT. Returns the value it passed to LAST_INSERT_ID, which is part of the answer."""
    cursor = connection.cursor
    cursor.execute(statement, params)
    return int(cursor.lastrowid)


def query(
    connection: DriverConnection, statement: str, params: Sequence[Any] = (), *, many: bool = False
) -> Sequence[Row]:
    """Run a statement that returns rows; `many`: it names several keys.

    A SELECT sees all that was committed before, also behind a proxy that sends SELECTs to replicas: it is part of a
    transaction, which such a proxy sends to the primary. See docs/databases.md.
    """
    if statement.startswith(_READS):
        statement = _AT_THE_PRIMARY + statement
        if connection.reads_by_itself:
            with transaction(connection):
                return query_as_is(connection, statement, params, many=many)
    return query_as_is(connection, statement, params, many=many)


@contextlib.contextmanager
def transaction(connection: DriverConnection) -> Iterator[None]:
    """Send BEGIN and COMMIT as statements, on a driver connection in autocommit."""
    execute(connection, "BEGIN IMMEDIATE" if connection.is_sqlite else "BEGIN")
    try:
        yield
        execute(connection, "COMMIT")
    except BaseException:
        with contextlib.suppress(Exception):
            execute(connection, "ROLLBACK")
        raise


def query_as_is(
    connection: DriverConnection, statement: str, params: Sequence[Any] = (), *, many: bool = False
) -> Sequence[Row]:
    """`query` of one round trip: a SELECT may see what was true a while ago."""
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
        # PostgreSQL keeps the plan of a prepared statement. A plan made while the table was small reads the whole table
        # for several keys, until the table is analyzed: for up to a minute, while the table grows.
        cursor.execute(statement, params, prepare=False)
    else:
        cursor.execute(statement, params)
