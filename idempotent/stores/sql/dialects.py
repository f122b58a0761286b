"""The differences between the SQL dialects: one SqlDialect for each."""

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

# The server's clock when the statement acts, not when the statement or its transaction began: a claim that waited for
# a lock must not go back in time. SYSDATE uses the session's zone; the second difference removes it.
_MYSQL_NOW: Final = (
    "(TIMESTAMPDIFF(MICROSECOND,'1970-01-01',SYSDATE(6))-TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),NOW(6)))"
)
_POSTGRESQL_NOW: Final = "(EXTRACT(EPOCH FROM clock_timestamp())*1000000)::bigint"
_SERVER_STATUS_IN_TRANS: Final = 1
_PQTRANS_INTRANS: Final = 2


class Conflict(Enum):
    """How an INSERT that meets existing keys reports them."""

    RETURNS_NEW = "returns_new"
    """ON CONFLICT DO NOTHING RETURNING: returns the new rows."""
    RETURNS_ALL = "returns_all"
    """ON DUPLICATE KEY UPDATE, where RETURNING returns every row, new or not (MariaDB). A claim returns only its
    fence, by LAST_INSERT_ID, or 0 if any key existed: reading rows takes PyMySQL longer than all other work."""
    SILENT = "silent"
    """ON DUPLICATE KEY UPDATE (MySQL): returns no rows, so the checker reads them back."""


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """The properties of one SQL dialect.

    Attributes:
        name: SQLAlchemy's name of the family: mysql, postgresql or sqlite.
        marker: the driver's positional parameter marker.
        now_us: the clock in microseconds since the epoch, UTC, as an SQL expression.
        blob: the binary type to CAST to.
        conflict: how INSERT reports existing keys.
        locking_read: the suffix with which a SELECT sees the newest committed rows inside a transaction.
        autocommits: whether a driver connection is in autocommit.
        in_transaction: whether, as far as the driver knows, the transaction is still open and usable.
        prepare: prepares a driver connection for the library's statements; cheap, may be called again.
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
        """The INSERT with a limit of `wait_s` seconds for lock waits; 0: no wait. None: the server's own limit.

        MariaDB only. PostgreSQL's limit is part of the statement (see `Statements`), SQLite's is the file's busy
        timeout, and MySQL's is a setting of the session.
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
    """The properties of an engine's dialect.

    Raises:
        ConfigurationError: the database, or its driver's parameter style, is not supported.
    """
    if dialect.paramstyle not in ("qmark", "format", "pyformat"):
        raise ConfigurationError(
            f"the driver {dialect.driver!r} uses the parameter style {dialect.paramstyle!r}, which is not supported; "
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
            prepare=_no_preparation,
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
            prepare=_no_preparation,
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
            prepare=_add_sqlite_clock,
        )
    raise ConfigurationError(f"{dialect.name} is not supported; use MySQL, MariaDB, PostgreSQL or SQLite")


def _no_preparation(connection: Any) -> None:
    """Prepare a connection that needs no preparation."""


def _mysql_in_transaction(connection: Any) -> bool:
    return bool(getattr(connection, "server_status", _SERVER_STATUS_IN_TRANS) & _SERVER_STATUS_IN_TRANS)


def _postgresql_in_transaction(connection: Any) -> bool:
    # INERROR does not count: the server would answer COMMIT with ROLLBACK, without an error.
    pgconn = getattr(connection, "pgconn", None)
    return pgconn is None or pgconn.transaction_status == _PQTRANS_INTRANS


def _add_sqlite_clock(connection: Any) -> None:
    # SQLite's own clock has only milliseconds. The file is on this machine, so the machine's clock is the store's.
    connection.create_function("idempotent_now_us", 0, lambda: time.time_ns() // 1000)
