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

from idempotent.stores.sql.cursor import NUMBERED, DriverConnection
from idempotent.stores.sql.engines import marker_of

# 4 parameters a row: below SQLite's 32,766 and PostgreSQL's 65,535, and well inside a MySQL packet.
MAX_ROWS: Final = 1000
# The server's clock when the statement acts, not when the statement or its transaction began: a claim that waited for
# a lock must not go back in time. Only SYSDATE tells it, in the session's zone; the second difference, of when the
# statement began, removes that. If summer time began or ended meanwhile, this is an hour wrong: so statements that may
# wait run in UTC, by `own_settings` or `scoped`. See docs/decisions/0044-statements-run-in-utc.md.
_MYSQL_NOW: Final = (
    "(TIMESTAMPDIFF(MICROSECOND,'1970-01-01',SYSDATE(6))-TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),NOW(6)))"
)
_UTC: Final = "time_zone='+00:00'"
# With CHAIN a COMMIT opens a transaction, in which all that follows is never committed; with RELEASE it disconnects.
_MYSQL_SETTINGS: Final = "SET SESSION completion_type=NO_CHAIN"
_POSTGRESQL_NOW: Final = "(EXTRACT(EPOCH FROM clock_timestamp())*1000000)::bigint"
_SERVER_STATUS_IN_TRANS: Final = 1
_PQTRANS_INTRANS: Final = 2
_BEYOND_3_BYTES: Final = re.compile("[\U00010000-\U0010ffff]")


def mysql_storable(connection: Any, text: str) -> str:
    """The text with `?` for each character that a PyMySQL connection's character set lacks."""
    encoding = connection.encoding
    known: str = text.encode(encoding, "replace").decode(encoding)
    return known if connection.charset == "utf8mb4" else _BEYOND_3_BYTES.sub("?", known)


def postgresql_storable(connection: Any, text: str) -> str:
    """The text with `?` for each character that a psycopg connection, or its database, may lack."""
    in_utf8 = connection.info.parameter_status("server_encoding") == "UTF8"
    encoding = connection.info.encoding if in_utf8 else "ascii"
    return text.encode(encoding, "replace").decode(encoding)


def sqlite_storable(connection: Any, text: str) -> str:
    """The text: SQLite stores every printable one."""
    del connection
    return text


def mysql_utf8(connection: Any) -> None:
    """Make UTF-8 the character set of a PyMySQL connection."""
    if connection.charset != "utf8mb4":
        connection.set_character_set("utf8mb4")


def postgresql_utf8(connection: Any) -> None:
    """Make UTF-8 the character set of a psycopg connection in autocommit."""
    if connection.info.encoding != "utf-8":
        connection.execute("SET client_encoding TO 'UTF8'")


def sqlite_utf8(connection: Any) -> None:
    """Do nothing: SQLite knows only UTF-8 here."""


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
        settings: sets what a COMMIT must mean in each session of ours; empty: no setting changes that.
        own_settings: what it sets too where no handler works: UTC, on which the clock depends, and the modes of SQL.
        blob: the binary type to CAST to.
        conflict: how INSERT reports existing keys.
        locking_read: the suffix with which a SELECT sees the newest committed rows inside a transaction.
        autocommits: whether a driver connection is in autocommit.
        in_transaction: whether, as far as the driver knows, the transaction is still open and usable.
        lock_limit: and a limit for lock waits: a second for a row, and {} for a table; empty: the claims set it, or
            nothing waits.
        prepare: prepares a driver connection for the library's statements; cheap, may be called again.
        statement_limit: a query for the longest statement that the server takes, in bytes; None: longer than any.
        use_utf8: makes UTF-8 the character set of a driver connection in autocommit.
        fit: the text with `?` for each character that a driver connection cannot send, or its database not store.
        schema: where the tables are (MySQL: the database); None: wherever the session looks for them.
    """

    name: str
    marker: str
    now_us: str
    settings: str
    own_settings: str
    blob: str
    conflict: Conflict
    locking_read: str
    lock_limit: str
    autocommits: Callable[[Any], bool]
    in_transaction: Callable[[Any], bool]
    prepare: Callable[[Any], None]
    statement_limit: str | None
    use_utf8: Callable[[Any], None]
    fit: Callable[[Any, str], str]
    schema: str | None = None

    def storable(self, connection: DriverConnection, text: str) -> str:
        """A readable text as a connection can store it: its character set must not make a key unstorable."""
        return text if text.isascii() else self.fit(connection.raw, text)

    def in_utf8(self, column: str) -> str:
        """A text column as bytes in UTF-8: PostgreSQL refuses to send a text that the connection's encoding lacks."""
        return (
            f"convert_to({column}, 'UTF8')" if self.name == "postgresql" else f"CAST({column} AS {self.blob})"
        )

    def bytes_literal(self, value: bytes) -> str:
        """Bytes as part of a statement."""
        return f"'\\x{value.hex()}'::bytea" if self.name == "postgresql" else f"x'{value.hex()}'"

    def quoted(self, name: str) -> str:
        """A name as an identifier: the migrations keep its capitals, and it may be a reserved word."""
        mark = "`" if self.name == "mysql" else '"'
        return f"{mark}{name.replace(mark, mark * 2)}{mark}"

    def located(self, table: str) -> str:
        """A table with its schema: a handler may have changed where the session looks for tables."""
        schema = "" if self.schema is None else f"{self.quoted(self.schema)}."
        return f"{schema}{self.quoted(table)}"

    def where_is(self, table: str) -> str:
        """A query for the schema in which a session finds a table, which fails as any other if it is missing."""
        if self.name == "mysql":
            return "SELECT DATABASE()"
        return (
            "SELECT n.nspname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
            f" WHERE c.oid = '{self.quoted(table)}'::regclass"
        )

    def if_stored(self, change: str = "", *, column: str = "key_hash", any_key: bool = False) -> str:
        """The end of an INSERT whose key may be stored: it changes that row, or leaves it as it is.

        `any_key`: also if only another unique key of the table is stored, as MySQL always does.
        """
        if self.name == "mysql":
            return f"ON DUPLICATE KEY UPDATE {change or f'{column} = {column}'}"
        key = "" if any_key else f" ({column})"
        return f"ON CONFLICT{key} DO {f'UPDATE SET {change}' if change else 'NOTHING'}"

    def scoped(self, statement: str, wait_s: float | None = None) -> str:
        """The statement with settings that end with it, for a session that is the application's as well: in UTC.

        On MariaDB also with a limit of `wait_s` seconds for lock waits; 0: no wait. None: the server's own limit.
        PostgreSQL's limit is part of the statement (see `Statements`), SQLite's is the file's busy timeout, and MySQL's
        is a setting of the session.
        """
        if self.name != "mysql":
            return statement
        if self.conflict is Conflict.RETURNS_ALL:
            limit = "" if wait_s is None else f", innodb_lock_wait_timeout={math.ceil(wait_s)}"
            return f"SET STATEMENT {_UTC}{limit} FOR {statement}"
        verb, rest = statement.split(" ", 1)
        return f"{verb} /*+ SET_VAR({_UTC}) */ {rest}"

    def markers(self, statement: str) -> str:
        """The statement with the driver's markers in place of `?`."""
        if self.marker == NUMBERED:
            numbers = count(1)
            return re.sub(r"\?", lambda _: f"${next(numbers)}", statement)
        return statement if self.marker == "?" else statement.replace("?", self.marker)


def dialect_for(dialect: Dialect) -> SqlDialect:
    """The properties of an engine's dialect.

    Raises:
        ConfigurationError: the database, or its driver, is not supported.
    """
    marker = marker_of(dialect.name, dialect.driver)
    if dialect.name in ("mysql", "mariadb"):
        mariadb = bool(getattr(dialect, "is_mariadb", False))
        return SqlDialect(
            name="mysql",
            marker=marker,
            now_us=_MYSQL_NOW,
            settings=_MYSQL_SETTINGS,
            own_settings=f", {_UTC}, sql_mode='STRICT_TRANS_TABLES'",
            blob="BINARY",
            conflict=Conflict.RETURNS_ALL if mariadb and dialect.insert_returning else Conflict.SILENT,
            locking_read=" LOCK IN SHARE MODE",
            lock_limit=", innodb_lock_wait_timeout=1, lock_wait_timeout={}",
            autocommits=lambda connection: bool(connection.get_autocommit()),
            in_transaction=_mysql_in_transaction,
            prepare=_no_preparation,
            statement_limit="SELECT @@max_allowed_packet",
            use_utf8=mysql_utf8,
            fit=mysql_storable,
        )
    if dialect.name == "postgresql":
        return SqlDialect(
            name="postgresql",
            marker=marker,
            now_us=_POSTGRESQL_NOW,
            settings="",
            own_settings="",
            blob="bytea",
            conflict=Conflict.RETURNS_NEW,
            locking_read="",
            lock_limit="",
            autocommits=lambda connection: bool(connection.autocommit),
            in_transaction=_postgresql_in_transaction,
            prepare=_no_preparation,
            statement_limit=None,
            use_utf8=postgresql_utf8,
            fit=postgresql_storable,
        )
    return SqlDialect(
        name="sqlite",
        marker=marker,
        now_us="idempotent_now_us()",
        settings="",
        own_settings="",
        blob="BLOB",
        conflict=Conflict.RETURNS_NEW,
        locking_read="",
        lock_limit="",
        autocommits=lambda connection: not connection.in_transaction,
        in_transaction=_sqlite_in_transaction,
        prepare=_add_sqlite_clock,
        statement_limit=None,
        use_utf8=sqlite_utf8,
        fit=sqlite_storable,
    )


def _no_preparation(connection: Any) -> None:
    """Prepare a connection that needs no preparation."""


def _mysql_in_transaction(connection: Any) -> bool:
    return bool(connection.server_status & _SERVER_STATUS_IN_TRANS)


def _postgresql_in_transaction(connection: Any) -> bool:
    # INERROR does not count: the server would answer COMMIT with ROLLBACK, without an error.
    return bool(connection.pgconn.transaction_status == _PQTRANS_INTRANS)


def _sqlite_in_transaction(connection: Any) -> bool:
    try:
        return bool(connection.in_transaction)
    except connection.ProgrammingError:  # closed, by the handler
        return False


def _add_sqlite_clock(connection: Any) -> None:
    # SQLite's own clock has only milliseconds. The file is on this machine, so the machine's clock is the store's.
    connection.create_function("idempotent_now_us", 0, lambda: time.time_ns() // 1000)
