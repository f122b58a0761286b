"""What differs between the SQL dialects, in one small table each."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Any, Final

from sqlalchemy.engine import Dialect

from idempotent.errors import ConfigurationError
from idempotent.stores.sql.cursor import NUMBERED

# The server's clock when the statement acts, not when it or its transaction began: a claim that waited for a
# lock must not go back in time. SYSDATE follows the session's zone; the second difference takes that out.
_MYSQL_NOW: Final = (
    "(TIMESTAMPDIFF(MICROSECOND,'1970-01-01',SYSDATE(6))-TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),NOW(6)))"
)
_POSTGRESQL_NOW: Final = "(EXTRACT(EPOCH FROM clock_timestamp())*1000000)::bigint"
_SERVER_STATUS_IN_TRANS: Final = 1
_PQTRANS_INTRANS: Final = 2


class Conflict(Enum):
    """How an INSERT that meets existing keys reports them."""

    RETURNS_NEW = "returns_new"
    """ON CONFLICT DO NOTHING RETURNING: the new rows come back."""
    RETURNS_ALL = "returns_all"
    """ON DUPLICATE KEY UPDATE, where RETURNING brings every row back, whoever owns it (MariaDB). A claim asks only for
    its fence, by LAST_INSERT_ID, or 0 if any key was there: reading rows takes PyMySQL longer than all the rest."""
    SILENT = "silent"
    """ON DUPLICATE KEY UPDATE (MySQL): the rows have to be read back."""


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """The differences.

    Attributes:
        name: SQLAlchemy's name of the family: mysql, postgresql or sqlite.
        marker: the driver's positional parameter marker.
        now_us: the clock in microseconds since the epoch, UTC, as an SQL expression.
        blob: the binary type to CAST to.
        conflict: how INSERT reports existing keys.
        locking_read: what makes a read see the newest committed rows inside a transaction.
        autocommits: whether a driver connection is in autocommit.
        in_transaction: whether, for all the driver knows, that transaction is still open and usable.
        prepare: makes a driver connection ready for our statements; cheap, may be called again.
    """

    name: str
    marker: str
    now_us: str
    blob: str
    conflict: Conflict
    locking_read: str
    autocommits: Callable[[Any], bool]
    in_transaction: Callable[[Any], bool]
    prepare: Callable[[Any], None]

    def waiting(self, insert: str, wait_s: float | None) -> str:
        """The INSERT, waiting for locks at most `wait_s` seconds; 0 does not wait. None: the server's own limit.

        MariaDB only. PostgreSQL's limit is part of the statement (see `Statements`), SQLite's is the file's busy
        timeout, MySQL's is its session's.
        """
        if wait_s is None or self.conflict is not Conflict.RETURNS_ALL:
            return insert
        return f"SET STATEMENT innodb_lock_wait_timeout={math.ceil(wait_s)} FOR {insert}"

    def markers(self, statement: str) -> str:
        """The statement with the driver's markers in place of `?`."""
        if self.marker == NUMBERED:
            numbers = count(1)
            return re.sub(r"\?", lambda _: f"${next(numbers)}", statement)
        return statement if self.marker == "?" else statement.replace("?", self.marker)


def dialect_for(dialect: Dialect) -> SqlDialect:
    """The differences for an engine's dialect.

    Raises:
        ConfigurationError: the database, or its driver's parameter style, is not supported.
    """
    if dialect.paramstyle not in ("qmark", "format", "pyformat"):
        raise ConfigurationError(
            f"the driver {dialect.driver!r} uses the parameter style {dialect.paramstyle!r}; "
            "use pymysql, psycopg or sqlite3"
        )
    marker = "?" if dialect.paramstyle == "qmark" else NUMBERED if dialect.driver == "psycopg" else "%s"
    if dialect.name in ("mysql", "mariadb"):
        mariadb = bool(getattr(dialect, "is_mariadb", False))
        return SqlDialect(
            name="mysql",
            marker=marker,
            now_us=_MYSQL_NOW,
            blob="BINARY",
            conflict=Conflict.RETURNS_ALL if mariadb and dialect.insert_returning else Conflict.SILENT,
            locking_read=" LOCK IN SHARE MODE",
            autocommits=lambda connection: bool(connection.get_autocommit()),
            in_transaction=_mysql_in_transaction,
            prepare=_nothing,
        )
    if dialect.name == "postgresql":
        return SqlDialect(
            name="postgresql",
            marker=marker,
            now_us=_POSTGRESQL_NOW,
            blob="bytea",
            conflict=Conflict.RETURNS_NEW,
            locking_read="",
            autocommits=lambda connection: bool(connection.autocommit),
            in_transaction=_postgresql_in_transaction,
            prepare=_nothing,
        )
    if dialect.name == "sqlite":
        return SqlDialect(
            name="sqlite",
            marker=marker,
            now_us="idempotent_now_us()",
            blob="BLOB",
            conflict=Conflict.RETURNS_NEW,
            locking_read="",
            autocommits=lambda connection: not connection.in_transaction,
            in_transaction=lambda connection: bool(connection.in_transaction),
            prepare=_give_sqlite_a_clock,
        )
    raise ConfigurationError(f"{dialect.name} is not supported; use MySQL, MariaDB, PostgreSQL or SQLite")


def _nothing(connection: Any) -> None:
    """There is nothing to do."""


def _mysql_in_transaction(connection: Any) -> bool:
    return bool(getattr(connection, "server_status", _SERVER_STATUS_IN_TRANS) & _SERVER_STATUS_IN_TRANS)


def _postgresql_in_transaction(connection: Any) -> bool:
    # Not INERROR: COMMIT would be answered by ROLLBACK, without an error.
    pgconn = getattr(connection, "pgconn", None)
    return pgconn is None or pgconn.transaction_status == _PQTRANS_INTRANS


def _give_sqlite_a_clock(connection: Any) -> None:
    # SQLite's own clock has milliseconds; the file is on this machine, so is its clock.
    connection.create_function("idempotent_now_us", 0, lambda: time.time_ns() // 1000)
