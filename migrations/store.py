"""The connection and the lock of a migration: one process at a time migrates a table."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar, cast

from sqlalchemy import Connection, Engine, NullPool, text
from sqlalchemy.exc import DBAPIError, OperationalError

from idempotent.errors import ConfigurationError, StoreBusyError
from idempotent.migrations.tables import refuse_elsewhere
from idempotent.migrations.versions import r0001_create_tables as initial
from idempotent.schema import version_name
from idempotent.stores.sql.bridge import Bridge
from idempotent.stores.sql.detached import beside_pool
from idempotent.stores.sql.engines import AnyEngine, is_async, new_engine
from idempotent.stores.sql.faults import ROW_LOGGING
from idempotent.stores.sql.loops import unpooled

Target: TypeAlias = AnyEngine
F = TypeVar("F", bound=Callable[..., Any])

LOCK_TIMEOUT_S = 60
"""How long a migration waits for another of the same table, in seconds (SQLite: for the file)."""

_SERVERS = ("mysql", "mariadb", "postgresql")
# GET_LOCK names are global to the server and have at most 64 characters. Not SHA1: MySQL 9 does not have it.
_MYSQL_LOCK = "SHA2(CONCAT_WS('.', 'idempotent-consumer', DATABASE(), :table), 224)"


def bridged(function: F) -> F:
    """Let a function of a database await an asyncio driver, on an event loop of its own if the caller has none."""

    @functools.wraps(function)
    def run(target: Target, **options: Any) -> Any:
        if not is_async(target):
            return function(target, **options)
        bridge = Bridge()
        try:
            return bridge.run(functools.partial(function, target, **options))
        finally:
            bridge.close()

    return cast("F", run)


@contextmanager
def connect(target: Target) -> Iterator[Connection]:
    """Connect to `target`.

    Raises:
        ConfigurationError: the URL is invalid, or the database or its driver is not supported.
        MissingExtraError: the database's driver is not installed.
    """
    engine = target if isinstance(target, Engine) else getattr(target, "sync_engine", None)
    if engine is None:
        engine = new_engine(target, asynchronous=True, poolclass=NullPool)
    dialect = engine.dialect.name
    if dialect not in (*_SERVERS, "sqlite"):
        raise ConfigurationError(f"no migrations for {dialect!r}: use MySQL, MariaDB, PostgreSQL or SQLite")
    with _connected(engine) as connection:
        if dialect == "postgresql":
            # A snapshot taken before waiting for the lock would hide the changes of the previous owner of the lock.
            connection.execution_options(isolation_level="READ COMMITTED")
            # SQLAlchemy does not recognise a type in quotes.
            connection.exec_driver_sql("SET quote_all_identifiers = off")
            connection.commit()
        elif dialect != "sqlite":
            # SQLAlchemy writes the quotes that it found when the engine connected first.
            ansi = connection.dialect.identifier_preparer.initial_quote == '"'
            mode = "STRICT_TRANS_TABLES" + (",ANSI_QUOTES" if ansi else "")
            connection.exec_driver_sql(f"SET SESSION completion_type=NO_CHAIN, sql_mode='{mode}'")
            connection.rollback()
        yield connection


def _connected(engine: Engine) -> Connection:
    if engine.dialect.name == "sqlite" and not engine.dialect.is_async:
        return engine.connect()
    # Beside the pool: settings of the session must not reach the application.
    driver_error = engine.dialect.loaded_dbapi.Error
    try:
        raw = unpooled(engine) if engine.dialect.is_async else beside_pool(engine.pool).connect()
    except driver_error as error:  # as `Engine.connect` translates it
        raise DBAPIError.instance(None, None, error, driver_error, dialect=engine.dialect) from error
    return Connection(engine, raw)


@contextmanager
def exclusive(target: Target, table: str) -> Iterator[Connection]:
    """Connect, begin, and lock out other migrations of `table` until the block has committed.

    Raises:
        ConfigurationError: the database is not supported, or takes no changes of rows in this isolation level.
        SchemaError: see `refuse_elsewhere`.
        StoreBusyError: another migration held the lock for longer than LOCK_TIMEOUT_S.
    """
    with connect(target) as connection:
        if connection.dialect.name in ("mysql", "mariadb"):
            _refuse_no_rows(connection)
            with _mysql_lock(connection, table), connection.begin():
                yield connection
        else:
            with connection.begin():
                if connection.dialect.name == "postgresql":
                    _lock_postgresql(connection, table)
                    refuse_elsewhere(connection, [*initial.tables(table).tables, version_name(table)])
                else:
                    _lock_sqlite(connection, table)
                yield connection


def _refuse_no_rows(connection: Connection) -> None:
    """Raise ConfigurationError if the server makes tables, but lets nobody write into them."""
    asked = "SHOW VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format', 'sql_log_bin')"
    found = {str(name).lower(): str(value).upper() for name, value in connection.exec_driver_sql(asked)}
    logs_statements = found == {"log_bin": "ON", "binlog_format": "STATEMENT", "sql_log_bin": "ON"}
    if logs_statements and connection.get_isolation_level() in ("READ COMMITTED", "READ UNCOMMITTED"):
        raise ConfigurationError(f"{ROW_LOGGING}. Nothing was changed")
    connection.rollback()


@contextmanager
def _mysql_lock(connection: Connection, table: str) -> Iterator[None]:
    """Hold a lock that outlives transactions, because DDL commits implicitly on MySQL."""
    name = {"table": table}
    taken = connection.scalar(
        text(f"SELECT GET_LOCK({_MYSQL_LOCK}, :timeout_s)"), {**name, "timeout_s": LOCK_TIMEOUT_S}
    )
    connection.rollback()
    if taken != 1:
        raise _busy(table)
    try:
        yield
    finally:
        # The server has already released the lock of a lost connection.
        if not connection.invalidated:
            connection.execute(text(f"SELECT RELEASE_LOCK({_MYSQL_LOCK})"), name)
            connection.rollback()


def _lock_postgresql(connection: Connection, table: str) -> None:
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'")
    # The schema is part of the lock's name: two applications may have a table of the same name in two schemas.
    statement = text(
        "SELECT pg_advisory_xact_lock(hashtext('idempotent-consumer'), "
        "hashtext(concat_ws('.', current_schema(), CAST(:table AS text))))"
    )
    try:
        connection.execute(statement, {"table": table})
    except OperationalError as exc:
        if getattr(exc.orig, "sqlstate", None) == "55P03":
            raise _busy(table) from exc
        raise


def _lock_sqlite(connection: Connection, table: str) -> None:
    # An engine's "begin" event may have sent BEGIN already. That transaction has no statements yet: end it.
    if getattr(connection.connection.dbapi_connection, "in_transaction", False):
        connection.exec_driver_sql("ROLLBACK")
    before_ms = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {LOCK_TIMEOUT_S * 1000}")
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    except OperationalError as exc:
        if str(getattr(exc.orig, "sqlite_errorname", "")).startswith("SQLITE_BUSY"):
            raise _busy(table) from exc
        raise
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {before_ms}")


def _busy(table: str) -> StoreBusyError:
    return StoreBusyError(
        f"another migration of table {table!r} (SQLite: another writer of the file) has held the lock for "
        f"{LOCK_TIMEOUT_S} s. Nothing was changed. Try again when it has ended"
    )
