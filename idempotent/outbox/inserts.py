"""Inserts: writes entries into the tables of an outbox, on the application's own connection."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import URL, Connection, Dialect, Engine
from sqlalchemy.exc import StatementError

from idempotent.checkers.sql.watching import execute_beside
from idempotent.errors import ConfigurationError, OutboxError, StoreError
from idempotent.logs import EventLog
from idempotent.outbox.entries import Entry, Transactions, bucket_of, lane_of
from idempotent.outbox.store import OutboxStore
from idempotent.schema import outbox_name
from idempotent.stores.sql.awaited import in_hex, spoils_bytes
from idempotent.stores.sql.cursor import NUMBERED
from idempotent.stores.sql.dialects import dialect_for
from idempotent.stores.sql.faults import Fault, as_store_error, fault_of
from idempotent.stores.sql.handler_connection import driver_of

# The most rows, and bytes of bodies and headers, of one INSERT: a packet of MySQL has 16 MB by default.
_ROWS: Final = 200
_BYTES: Final = 4_000_000
# The library's own clock for SQLite is a function of connections that it has prepared.
_SQLITE_NOW: Final = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
_COLUMNS: Final = "bucket, lane, message_id, destination, subject, order_key, headers"
# Of these: the id, the name of the broker, the subject and the order key.
_TEXTS: Final = 4
# No fault of the handler that sends, so its message waits.
_OF_THE_TABLES: Final = (Fault.SCHEMA, Fault.DENIED)
_Row: TypeAlias = tuple[object, ...]

log = EventLog(__name__)


class Inserts:
    """The INSERTs of one outbox. Warns of messages that its relay will not find.

    For that it compares the kind and the name of the databases. Hosts differ behind a proxy, and a proxy may give a
    database another name, so it is a warning.

    Args:
        url: of the outbox's engine, whose database its relay reads.
        table: validated name of the key table that the outbox belongs to.
        schema: where the tables are; None: where a new connection finds the outbox.
    """

    def __init__(self, url: URL, table: str, schema: str | None) -> None:
        self._url: Final = url
        self._table: Final = table
        self._schema: Final = schema
        self._schemas: WeakKeyDictionary[Engine, str | None] = WeakKeyDictionary()
        self._statement = lru_cache(maxsize=64)(self._text)

    def write(
        self,
        connection: Connection,
        entries: Sequence[Entry],
        inside: Transactions = (),
    ) -> None:
        """Insert entries in their order, in the connection's transaction: one statement for up to 200.

        Args:
            connection: the connection.
            entries: the entries.
            inside: noted as `written_inside` of what a statement has written: the next one may fail.

        Raises:
            ConfigurationError: the connection is in AUTOCOMMIT, so it has no transaction; or it is asyncmy's, in an
                sql_mode in which that driver spoils bytes.
            OutboxError: a table is missing, or the user may not write to it, or the database did not say where it is.
            SQLAlchemyError: the database failed otherwise; the error shows no body and no header.
        """
        if autocommits(connection):
            raise no_transaction()
        try:
            schema = self._schema_of(connection.engine)
        except StoreError as error:
            raise OutboxError(str(error)) from error
        encoded = connection.dialect.name in ("mysql", "mariadb")
        for delayed in (False, True):
            chosen = [entry for entry in entries if (entry.delay_us > 0) is delayed]
            for part in _parts(chosen):
                rows = [_values(entry, encoded=encoded) for entry in part]
                try:
                    self._insert(connection, rows, schema, delayed=delayed)
                except StatementError as error:
                    error.hide_parameters = True  # bodies and headers
                    if fault_of(error, connection.engine) in _OF_THE_TABLES:
                        raw = connection.connection.dbapi_connection
                        failed = as_store_error(error, connection.engine, self._table, raw, in_handler=True)
                        raise OutboxError(str(failed)) from error
                    raise
                for entry in part:
                    entry.written_inside = inside

    def _schema_of(self, engine: Engine) -> str | None:
        """The schema of the tables for the connections of an engine, which a new one of them tells once.

        Raises:
            StoreError: a table is missing, or the database did not answer.
        """
        if engine not in self._schemas:
            found = self._schema
            if found is None:
                with closing(OutboxStore(engine, self._table)) as store:
                    found = store.connections.dialect.schema
            here, there = _database(self._url), _database(engine.url)
            if None not in (*here, *there) and here != there:
                log.warning(
                    "outbox_elsewhere",
                    extra={
                        "written_to": engine.url.render_as_string(hide_password=True),
                        "outbox": self._url.render_as_string(hide_password=True),
                        "hint": "give the Outbox, and its relay, the engine of the database that the Sessions write to",
                    },
                )
            self._schemas[engine] = found
        return self._schemas[engine]

    def _insert(
        self, connection: Connection, rows: Sequence[_Row], schema: str | None, *, delayed: bool
    ) -> None:
        """Execute one statement. The driver gets it as it is: SQLAlchemy would name, and order, each value."""
        values = tuple(chain.from_iterable(rows))
        text = partial(self._statement, connection.dialect, schema, len(rows), delayed=delayed)

        def statement(*, raw: bool) -> tuple[str, Sequence[object]]:
            # In MariaDB's EMPTY_STRING_IS_NULL the '' of a driver would be NULL, and an empty body a tombstone.
            is_mysql = connection.dialect.name in ("mysql", "mariadb") and b"" in values
            return in_hex(text(raw=raw), values, empty=True) if is_mysql else (text(raw=raw), values)

        if execute_beside(connection, *statement(raw=True)):
            return
        if connection.dialect.driver == "asyncmy" and spoils_bytes(driver_of(connection)):
            raise ConfigurationError(
                "the session's sql_mode is NO_BACKSLASH_ESCAPES, in which asyncmy sends other bytes than it was given: "
                "leave that mode out"
            )
        with _raw_cursors(connection) as raw:
            sql, left = statement(raw=raw)
            connection.exec_driver_sql(sql, tuple(left))

    def _text(self, database: Dialect, schema: str | None, rows: int, *, delayed: bool, raw: bool) -> str:
        dialect = replace(dialect_for(database), schema=schema)
        quoted = dialect.located(f"{outbox_name(self._table)}{'_delayed' if delayed else ''}")
        now = _SQLITE_NOW if dialect.name == "sqlite" else dialect.now_us
        # Whatever the character set of the application's connection is: without strict mode the server would store
        # "?" for what that lacks, and two ids would be one.
        text = "CONVERT(? USING utf8mb4)" if dialect.name == "mysql" else "?"
        row = f"(?, ?, {', '.join([text] * _TEXTS)}, ?, ?, {now}{f', {now} + ?' if delayed else ''})"
        statement = dialect.scoped(
            # BODY is a reserved word in MariaDB's sql_mode ORACLE.
            f"INSERT INTO {quoted} ({_COLUMNS}, {dialect.quoted('body')}, created_at{', due_at' if delayed else ''})"
            f" VALUES {', '.join([row] * rows)}"
        )
        return (
            dialect.markers(statement) if raw or dialect.marker != NUMBERED else statement.replace("?", "%s")
        )


def _database(url: URL) -> tuple[str | None, str | None]:
    kind = "mysql" if url.get_backend_name() == "mariadb" else url.get_backend_name()
    name = url.database or None
    if kind == "sqlite" and name is not None:
        name = str(Path(name).resolve())
    return kind, name


@contextmanager
def _raw_cursors(connection: Connection) -> Iterator[bool]:
    """Inside, cursors of psycopg do not search statements for `%s`, which takes longer than to run a large one.

    SQLAlchemy makes the cursor, so that its events and errors stay as they are. False: another driver, or cursors that
    the application has chosen.
    """
    psycopg = sys.modules.get("psycopg")
    driver = driver_of(connection) if psycopg is not None else None
    if psycopg is None or not isinstance(driver, (psycopg.Connection, psycopg.AsyncConnection)):
        yield False
        return
    factory = driver.cursor_factory
    raw = {psycopg.Cursor: psycopg.RawCursor, psycopg.AsyncCursor: psycopg.AsyncRawCursor}.get(factory)
    if raw is None:
        yield False
        return
    driver.cursor_factory = raw
    try:
        yield True
    finally:
        driver.cursor_factory = factory


def autocommits(connection: Connection) -> bool:
    """Whether each statement on the connection commits by itself: by its options, its engine's, or the driver's."""
    level = connection.get_execution_options().get("isolation_level")
    if level is None:
        level = getattr(connection.dialect, "_on_connect_isolation_level", None)
    if str(level).upper() == "AUTOCOMMIT":
        return True
    if connection.dialect.name == "sqlite":
        return False  # the driver begins a transaction at the first change
    driver: Any = driver_of(connection)
    ask = getattr(driver, "get_autocommit", None)
    return bool(getattr(driver, "autocommit", False) if ask is None else ask())


def no_transaction() -> ConfigurationError:
    """Why messages cannot be sent on such a connection."""
    return ConfigurationError(
        "the connection is in AUTOCOMMIT: message and effect cannot commit together. "
        "Send in a transaction, without isolation_level='AUTOCOMMIT'"
    )


def _parts(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    part: list[Entry] = []
    size = 0
    for entry in entries:
        bytes_of_entry = len(entry.body or b"") + len(entry.headers or b"")
        if part and (len(part) == _ROWS or size + bytes_of_entry > _BYTES):
            yield part
            part, size = [], 0
        part.append(entry)
        size += bytes_of_entry
    if part:
        yield part


def _values(entry: Entry, *, encoded: bool) -> _Row:
    lane = lane_of(entry.destination, entry.order_key)
    texts: _Row = (entry.message_id, entry.destination, entry.subject, entry.order_key)
    if encoded:
        texts = tuple(None if text is None else str(text).encode() for text in texts)
    values = (bucket_of(lane), lane, *texts, entry.headers, entry.body)
    return (*values, entry.delay_us) if entry.delay_us else values
