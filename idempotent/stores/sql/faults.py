"""Translate errors of SQL drivers into StoreErrors. Only this module does so."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy.engine import URL, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from idempotent.errors import (
    SchemaError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    url_word,
    without_values,
)
from idempotent.schema import DEFAULT_TABLE, outbox_name, run_claims_name, runs_name
from idempotent.stores.sql.engines import LOOKS_ELSEWHERE
from idempotent.stores.sql.grants import asking, usage_of_schema, what_to_grant


class Fault(Enum):
    """What kind of error a driver raised."""

    DISCONNECTED = "disconnected"
    """The connection was lost, or could not be opened."""
    CROWDED = "crowded"
    """The engine's pool lent no connection within its pool_timeout."""
    LOCKED = "locked"
    """A lock was not granted in time. The transaction is still open (MySQL, SQLite)."""
    TIMED_OUT = "timed out"
    """The session's time limit has ended a statement. Our statements take that long only while they wait for a lock."""
    ABORTED = "aborted"
    """A deadlock or a serialization failure: the server has rolled the transaction back."""
    FULL = "full"
    """The server has no disk space left. MySQL and SQLite have undone only the statement."""
    SCHEMA = "schema"
    """A table or column is missing."""
    DENIED = "denied"
    """The user has no right to do this."""
    REFUSED = "refused"
    """A constraint, a data type or a trigger refused the statement's data."""
    OTHER = "other"


KEPT: Final = (Fault.LOCKED, Fault.TIMED_OUT, Fault.ABORTED, Fault.CROWDED)
"""After any other error the connection is closed, and the idle ones with it. Their server may have become a replica or
left its cluster, while a new connection reaches the primary. Or a handler has left a setting on the connection, such as
a search_path without the table, with which each later claim would fail too."""

# MySQL error numbers: https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html
_MYSQL: Final = {
    1205: Fault.LOCKED,
    3572: Fault.LOCKED,
    1969: Fault.TIMED_OUT,  # MariaDB's max_statement_time
    1213: Fault.ABORTED,
    1020: Fault.ABORTED,
    1021: Fault.FULL,
    1114: Fault.FULL,
    1146: Fault.SCHEMA,
    1054: Fault.SCHEMA,
    1142: Fault.DENIED,
    1143: Fault.DENIED,
    1040: Fault.DISCONNECTED,
    1044: Fault.DISCONNECTED,
    1045: Fault.DISCONNECTED,
    1047: Fault.DISCONNECTED,  # a Galera node that has left its cluster
    1049: Fault.DISCONNECTED,
    1053: Fault.DISCONNECTED,
    # A primary that has become a replica: a new connection reaches the new primary.
    1290: Fault.DISCONNECTED,
    1836: Fault.DISCONNECTED,
    1927: Fault.DISCONNECTED,
    2002: Fault.DISCONNECTED,
    2003: Fault.DISCONNECTED,
    2006: Fault.DISCONNECTED,
    2013: Fault.DISCONNECTED,
    2014: Fault.DISCONNECTED,
    2055: Fault.DISCONNECTED,
}
# SQLSTATE: https://www.postgresql.org/docs/current/errcodes-appendix.html
_POSTGRESQL: Final = {
    "55P03": Fault.LOCKED,
    "40001": Fault.ABORTED,
    "40P01": Fault.ABORTED,
    "53100": Fault.FULL,
    "42P01": Fault.SCHEMA,
    "42703": Fault.SCHEMA,
    "42501": Fault.DENIED,
    "57P01": Fault.DISCONNECTED,
    "57P02": Fault.DISCONNECTED,
    "57P03": Fault.DISCONNECTED,
    "57P04": Fault.DISCONNECTED,  # the database was dropped
    "57P05": Fault.DISCONNECTED,  # idle_session_timeout
    "25P03": Fault.DISCONNECTED,  # idle_in_transaction_session_timeout
    "53300": Fault.DISCONNECTED,
    "25006": Fault.DISCONNECTED,  # a primary that has become a replica
}
_CANCELED: Final = "57014"  # by statement_timeout, or by a person
_POSTGRESQL_CLASSES: Final = {
    "08": Fault.DISCONNECTED,
    "28": Fault.DISCONNECTED,
    "3D": Fault.DISCONNECTED,
    "22": Fault.REFUSED,
    "23": Fault.REFUSED,
    "44": Fault.REFUSED,
    "P0": Fault.REFUSED,
}
# PostgreSQL, MySQL and MariaDB with the name of the database, SQLite.
_MISSING_TABLE: Final = re.compile(
    r"relation \"(?:(?P<schema>[^\".]+)\.)?(\w+)\" does not exist"
    r"|Table '(?:(?P<database>[^'.]*)\.)?(\w+)' doesn't exist"
    r"|no such table: (?:\w+\.)?(\w+)"
)
_ROLE: Final = (
    "If the handler has changed the role of its session (SET ROLE, SET SESSION AUTHORIZATION), let it change the role "
    "back before it sends and returns, or grant that role the same. Else: "
)
_READ_ONLY: Final = re.compile("read[- ]only", re.IGNORECASE)
_READ_ONLY_BY: Final = {
    "postgresql": "default_transaction_read_only",
    "sqlite": "mode=ro",
    **dict.fromkeys(("mysql", "mariadb"), "transaction_read_only (tx_read_only)"),
}
# As the names of psycopg's prepared statements begin.
_PREPARED_BY_PSYCOPG: Final = 'prepared statement "_pg3_'
_PREPARE_NOTHING: Final = (
    "Behind a pooler such as PgBouncer in transaction mode, add ?prepare_threshold=None to the URL, or give "
    'create_engine connect_args={"prepare_threshold": None}'
)
ROW_LOGGING: Final = (
    "binlog_format is STATEMENT, with which READ COMMITTED and READ UNCOMMITTED may not write: set binlog_format to "
    "ROW or MIXED, or the isolation level to REPEATABLE READ"
)
_NO_ROW_LOGGING: Final = 1665
_SQLITE_BUSY: Final = 5
_SQLITE_LOCKED: Final = 6
_SQLITE_FULL: Final = 13
_SQLITE_CANTOPEN: Final = 14


def original(error: BaseException) -> BaseException:
    """The driver's own exception behind SQLAlchemy's."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def lacks_what_it_prepared(error: object) -> bool:
    """Whether a pooler has given the connection another session, which lacks, or has, psycopg's prepared statement."""
    return _PREPARED_BY_PSYCOPG in str(error)


def _text_of(error: object) -> str:
    """An error's text on one line, without the values that it quotes: they are found by the lines behind them."""
    return " ".join(without_values(str(error)).split())


def explained(error: object) -> str:
    """An error of a statement on one line, with what to do if a pooler has changed the session."""
    text = _text_of(error)
    return f"{text}. {_PREPARE_NOTHING}" if lacks_what_it_prepared(text) else text


def fault_of(error: BaseException, engine: Engine, connection: Any = None) -> Fault:
    """Classify an error.

    Args:
        error: a driver's exception, or SQLAlchemy's exception around it.
        engine: the engine whose dialect raised it.
        connection: the driver's connection on which it happened, if known.
    """
    driver_error = original(error)
    if isinstance(error, PoolTimeoutError):
        return Fault.CROWDED
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return Fault.DISCONNECTED
    known = _known(driver_error, engine.dialect.name)
    if known is not None:
        return known
    dbapi = engine.dialect.loaded_dbapi
    if isinstance(driver_error, dbapi.IntegrityError):
        return Fault.REFUSED
    if isinstance(driver_error, dbapi.Error) and engine.dialect.is_disconnect(driver_error, connection, None):
        return Fault.DISCONNECTED
    # On a dead socket PyMySQL raises InterfaceError(0, '') and psycopg an OperationalError without a state.
    if isinstance(driver_error, (dbapi.InterfaceError, OSError)):
        return Fault.DISCONNECTED
    if isinstance(driver_error, dbapi.OperationalError) and not getattr(driver_error, "sqlstate", "unknown"):
        return Fault.DISCONNECTED
    return Fault.OTHER


def _known(error: BaseException, database: str) -> Fault | None:
    if database == "postgresql":
        state = getattr(error, "sqlstate", None) or ""
        if state == _CANCELED and "statement timeout" in str(error):
            return Fault.TIMED_OUT
        return _POSTGRESQL.get(state) or _POSTGRESQL_CLASSES.get(state[:2])
    if database == "sqlite":
        return _known_to_sqlite(getattr(error, "sqlite_errorcode", 0) & 0xFF, str(error))
    return _MYSQL.get(error.args[0]) if error.args else None


def _known_to_sqlite(code: int, text: str) -> Fault | None:
    if code in (_SQLITE_BUSY, _SQLITE_LOCKED):
        return Fault.LOCKED
    if code == _SQLITE_FULL:
        return Fault.FULL
    if code == _SQLITE_CANTOPEN:
        return Fault.DISCONNECTED
    return Fault.SCHEMA if _lacks_table_or_column(text) else None


def _lacks_table_or_column(text: str) -> bool:
    return text.startswith(("no such table", "no such column")) or "has no column named" in text


def as_store_error(
    error: BaseException, engine: Engine, table: str, connection: Any = None, *, in_handler: bool = False
) -> StoreError:
    """The error to raise: it names the store, what happened, and what to do. Raise it `from` the original.

    `in_handler`: it happened in a session that a handler may have changed before.
    """
    if isinstance(error, StoreError):
        return error
    store = engine.url.render_as_string(hide_password=True)
    text = _text_of(original(error))
    if lacks_what_it_prepared(text):
        return StoreUnavailableError(
            f"the session of the store {store} is another one than that which prepared a statement: {text}. "
            f"{_PREPARE_NOTHING}"
        )
    match fault_of(error, engine, connection):
        case Fault.DISCONNECTED:
            remedy = _where_to_write(text, engine) or _to_connect(text, engine)
            return StoreUnavailableError(f"cannot use the store {store}: {text}{remedy}")
        case Fault.CROWDED:
            return StoreUnavailableError(
                f"the engine's pool lent no connection to {store}: {text}. Each message that is handled at the same "
                "time needs one: raise the engine's pool_size or lower the worker's concurrency."
            )
        case Fault.TIMED_OUT:
            return StoreBusyError(
                f"the store {store} is busy: {text}. statement_timeout (MariaDB: max_statement_time) should be longer "
                "than lock_timeout_s. Try again."
            )
        case Fault.LOCKED | Fault.ABORTED:
            alone = engine.dialect.name == "sqlite"
            why = " One transaction at a time writes to the file, such as that of a handler." if alone else ""
            return StoreBusyError(f"the store {store} is busy: {text}.{why} Try again.")
        case Fault.FULL:
            return StoreError(f"the store {store} is full: {text}. Free disk space; messages wait.")
        case Fault.SCHEMA:
            return _missing(error, engine, table, connection)
        case Fault.DENIED:
            role = _ROLE if in_handler else ""
            return StoreError(
                f"the user of the store {store} lacks a right: {text}. {role}{what_to_grant(text, engine, connection)}"
            )
        case _:
            remedy = (
                f" {ROW_LOGGING}." if _is_statement_only(error, engine) else _where_to_write(text, engine)
            )
            return StoreError(f"the store {store} failed: {text}{remedy}")


def _is_statement_only(error: BaseException, engine: Engine) -> bool:
    return engine.dialect.name in ("mysql", "mariadb") and original(error).args[:1] == (_NO_ROW_LOGGING,)


def _missing(error: BaseException, engine: Engine, table: str, connection: Any) -> SchemaError:
    store = engine.url.render_as_string(hide_password=True)
    text = _text_of(original(error))
    missing, schema = _missing_table(text)
    missing = missing or table
    if (granted := _unseen(missing, engine, connection)) is not None:
        return SchemaError(
            f"the user of the store {store} may not use the schema of the table {missing}: {text}. "
            f"Type: {granted} (as a user who may grant it)"
        )
    return SchemaError(
        f"the table {missing} in {store} is missing or differs from what this version expects: {text}. "
        f"Type: {to_create(engine, table, schema)} (or, {in_own_history([missing], table)}; if it was "
        "lost, restore it from a backup instead; "
        f"`idempotent migrate check {options_for(engine, table, schema)}` shows what differs)"
    )


def _unseen(missing: str, engine: Engine, connection: Any) -> str | None:
    """The GRANT with which PostgreSQL would show this table to the user, if it is there."""
    ask = asking(connection)
    if ask is None or engine.dialect.name != "postgresql":
        return None
    try:
        return usage_of_schema(missing, ask)
    except (engine.dialect.loaded_dbapi.Error, OSError):
        return None  # its transaction has failed, or the connection


def _where_to_write(text: str, engine: Engine) -> str:
    """After an error of a session that only reads: what to do, with the name of the setting."""
    setting = _READ_ONLY_BY.get(engine.dialect.name)
    if setting is None or not _READ_ONLY.search(text):
        return ""
    return f". Connect to the primary; if this is it, unset {setting} for the user."


def _to_connect(text: str, engine: Engine) -> str:
    # MySQL's error 1044: the server has let the user in, but not into the database.
    shut = "Access denied" in text and "to database" in text
    granted = f" {what_to_grant(text, engine)}" if shut else ""
    return f". Check that the server runs, the host, port and database, the user and the password.{granted}"


def _missing_table(text: str) -> tuple[str | None, str | None]:
    """The table that a database's error says is missing, and its schema."""
    found = _MISSING_TABLE.search(text)
    return (found[found.lastindex or 0], found["schema"] or found["database"]) if found else (None, None)


def option_for(schema: str) -> str:
    """What a URL of PostgreSQL needs for sessions that look into this schema only."""
    name = schema if schema.isidentifier() else '"{}"'.format(schema.replace('"', '""'))
    escaped = name.replace(" ", "\\ ")  # options are separated by blanks
    return f"?options=-csearch_path%3D{quote(escaped)}"


def to_create(engine: Engine, table: str, schema: str | None = None) -> str:
    """The command that creates the missing ones of the tables that belong to `table`, and upgrades the others."""
    return f"idempotent migrate upgrade {options_for(engine, table, schema)} --create-missing"


def options_for(engine: Engine, table: str, schema: str | None = None) -> str:
    """The options that name these tables to a command; a schema of None is the one in which the engine finds them."""
    url, schema = engine.get_execution_options().get(LOOKS_ELSEWHERE, (engine.url, schema))
    by_url = {"sqlite": schema, "postgresql": None}.get(engine.dialect.name, url.database)
    known = schema is None or schema == by_url
    where = shlex.quote(table if known else f"{schema}.{table}")
    return f"--url {url_word(url.render_as_string(hide_password=False))} --table {where}"


def name_of(engine: Engine, table: str, schema: str | None = None) -> str:
    """These tables in one word: `postgresql://host:5432/shop/orders_keys`, without a user or a password."""
    url = engine.get_execution_options().get(LOOKS_ELSEWHERE, (engine.url, schema))[0]
    where = URL.create(url.get_backend_name(), None, None, url.host, url.port, url.database)
    return f"{where.render_as_string()}/{table if schema is None else f'{schema}.{table}'}"


def in_own_history(missing: Iterable[str], table: str) -> str:
    """What creates these tables, of those that belong to `table`, in the application's own migrations."""
    argument = "" if table == DEFAULT_TABLE else f"table={table!r}"
    names = dict.fromkeys(_creating(each, table) for each in missing)
    calls = ", ".join(f"{name}({argument})" for name in names)
    return f"in an Alembic history of your own, a new migration that calls {calls} of idempotent.migrations"


def _creating(missing: str, table: str) -> str:
    """The function that creates a table of those that belong to `table`."""
    if missing.startswith(outbox_name(table)):
        return "create_outbox_tables"
    if missing in (runs_name(table), run_claims_name(table)):
        return "create_run_tables"
    return "create_dedup_table"
