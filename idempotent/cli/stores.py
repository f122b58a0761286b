"""Opens the checker or the database of a --url, and closes it at the end."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from sqlalchemy import Engine, event, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from idempotent.checkers import SqlChecker, checker_from_url
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.sql.transactional import TransactionalBase
from idempotent.checkers.urls import StoreKind, parted, scheme_of
from idempotent.errors import ConfigurationError, StoreError, StoreUnavailableError, url_word
from idempotent.keys import Key, key_from_text
from idempotent.outbox import Outbox
from idempotent.schema import DEFAULT_TABLE, failures_name, validate_schema, validate_table_name
from idempotent.stores.sql.answers import limit_answers
from idempotent.stores.sql.engines import engine_from, looking_in, without_asyncio
from idempotent.stores.sql.faults import Fault, as_store_error, fault_of, options_for
from idempotent.stores.sql.rights import hidden_rows

if TYPE_CHECKING:
    from idempotent.adapters.spark.ledger.config import StoreConfig
    from idempotent.checkers import OffsetChecker

_CONNECT_TIMEOUT_S: Final = 10
ANSWER_TIMEOUT_S: Final = 30
# Longer than a migration waits for another one.
_MIGRATION_TIMEOUT_S: Final = 90


@contextmanager
def checker_at(
    url: str, *, table: str | None = None, prefix: str | None = None, **options: Any
) -> Iterator[AbstractIdempotentChecker]:
    """The checker of a store that other processes use too. More `options` win over those in the URL.

    Raises:
        ConfigurationError: an invalid URL, table or prefix.
        MissingExtraError: the driver is not installed.
        StoreUnavailableError: an SQLite file that does not exist.
    """
    url = without_asyncio(url)
    kind = scheme_of(url).kind
    if kind is StoreKind.MEMORY:
        raise ConfigurationError(
            "the keys of memory:// exist only in the process that uses them; give the URL of an SQL store or Redis"
        )
    if kind is StoreKind.REDIS and table is not None:
        raise ConfigurationError("a Redis store has no table; its keys have a prefix: --prefix")
    if kind is StoreKind.SQL and prefix is not None:
        raise ConfigurationError("--prefix is for Redis; an SQL store has a table: --table")
    if prefix is not None:
        options["prefix"] = prefix
    checker = open_checker(url, **tables(url, table), **options)
    limit_waits(checker)
    try:
        yield checker
    finally:
        checker.close()


def tables(url: str, given: str | None) -> dict[str, str]:
    """What `--table [SCHEMA.]NAME` says. SQLite's tables are in no schema.

    Raises:
        ConfigurationError: an invalid name.
    """
    if given is None:
        return {}
    schema, dot, name = given.rpartition(".")
    if not dot or "sqlite" in url.partition(":")[0]:
        return {"table": validate_table_name(given)}
    return {"schema": schema, "table": validate_table_name(name)}


def outbox_at(url: str, table: str | None) -> Outbox:
    """The outbox in a database that other processes use too, which is not waited for without a limit.

    Raises:
        ConfigurationError: not the URL of a database, or an invalid table name.
        StoreUnavailableError: an SQLite file that does not exist.
    """
    demand_file(url, table)
    address, name, schema = database_of(url, table, "an outbox is in an SQL database; give its URL")
    outbox = Outbox(address, table=name, schema=schema)
    limit_answers(outbox.store.connections.engine, ANSWER_TIMEOUT_S)
    return outbox


def database_of(
    url: str, table: str | None, otherwise: str = "give the URL of an SQL database"
) -> tuple[str, str, str | None]:
    """The database's own URL, the key table and its schema; all three may stand in the URL of a checker.

    Raises:
        ConfigurationError: not the URL of a database, which `otherwise` explains, or an invalid name.
    """
    scheme = scheme_of(url)
    if scheme.kind is not StoreKind.SQL:
        raise ConfigurationError(otherwise)
    address, of_url = parted(url)
    named = {**of_url, **tables(url, table)}
    return without_asyncio(scheme.store_url(address)), named.get("table", DEFAULT_TABLE), named.get("schema")


@contextmanager
def offsets_at(url: str, table: str | None) -> Iterator[OffsetChecker]:
    """The OffsetChecker in a database, which the URL of any checker names: the options of that one do not count.

    Raises:
        ConfigurationError: not the URL of a database, or what `checker_at` raises.
    """
    from idempotent.checkers import OffsetChecker

    address, name, schema = database_of(url, table, "offsets are in an SQL database; give its URL")
    with checker_at(f"offsets+{address}", table=name, schema=schema) as checker:
        assert isinstance(checker, OffsetChecker)
        yield checker


def ledger_of(url: str, table: str | None, prefix: str | None) -> StoreConfig:
    """Where the run ledger of Spark is that stands beside these keys.

    Raises:
        ConfigurationError: not a store of keys, or an invalid name; or the tables are in a schema.
    """
    from idempotent.adapters.spark.ledger.config import DEFAULT_PREFIX, StoreConfig

    if scheme_of(url).kind is StoreKind.SQL:
        url, table, schema = database_of(url, table)
        if schema is not None:
            raise ConfigurationError(
                "the ledger of Spark's runs is found by the URL alone, without a schema: "
                "?options=-csearch_path%3DSCHEMA, or the name of the database"
            )
    return StoreConfig(url, table=table or DEFAULT_TABLE, prefix=prefix or DEFAULT_PREFIX)


def limit_waits(checker: AbstractIdempotentChecker) -> None:
    """Let a command fail that waits for a store that is frozen or locked. Redis has a limit already."""
    if isinstance(checker, (SqlChecker, TransactionalBase)):
        limit_answers(checker.store.engine, ANSWER_TIMEOUT_S)


def open_checker(url: str, **options: Any) -> AbstractIdempotentChecker:
    """`checker_from_url`, but a missing SQLite file is an error, and connecting has a short timeout."""
    demand_file(url, options.get("table"))
    checker = checker_from_url(url, **options)
    if isinstance(checker, (SqlChecker, TransactionalBase)):
        _limit_connecting(checker.store.engine)
    return checker


@contextmanager
def database_at(
    url: str, table: str | None, *, must_exist: bool = True, only_reads: bool = False
) -> Iterator[tuple[Engine, str, str]]:
    """The engine for a migration, the key table, and the options that name both to another command.

    An error of SQLAlchemy inside becomes a StoreError.

    Args:
        url: of the database.
        table: the key table, as `--table` says it.
        must_exist: refuse an SQLite file that does not exist.
        only_reads: do not wait long for a lock: no other migration is awaited.

    Raises:
        ConfigurationError: not the URL of a database, or an invalid table name.
        StoreError: the database failed or did not answer.
    """
    otherwise = "only SQL stores have tables to migrate; this one needs none"
    address, name, schema = database_of(url, table, otherwise)
    if must_exist:
        demand_file(url, table)
    given = engine_from(address)
    with looking_in(given, validate_schema(schema)) as engine:
        _limit_connecting(engine)
        limit_answers(engine, _MIGRATION_TIMEOUT_S, lock_waits=only_reads)
        try:
            yield engine, name, options_for(engine, name)
        except SQLAlchemyError as error:
            raise _translated(error, engine, name) from error
        finally:
            given.dispose()


def _translated(error: SQLAlchemyError, engine: Engine, table: str) -> StoreError:
    """The error of a store. What to GRANT, and to whom, takes a connection."""
    if fault_of(error, engine) in (Fault.DENIED, Fault.SCHEMA):
        with suppress(SQLAlchemyError), engine.connect() as connection:
            return as_store_error(error, engine, table, connection.connection.dbapi_connection)
    return as_store_error(error, engine, table)


def tables_that_hide_rows(checker: AbstractIdempotentChecker) -> list[str]:
    """Those of the tables of keys in which row level security hides rows from this user."""
    if not isinstance(checker, (SqlChecker, TransactionalBase)):
        return []
    store = checker.store
    return [table for table, _ in hidden_rows(store.connections, [store.table, failures_name(store.table)])]


def demand_file(url: str, table: str | None = None) -> None:
    """Raise StoreUnavailableError for an SQLite file that does not exist: connecting would create an empty one."""
    try:
        parsed = make_url(scheme_of(url).store_url(url))
    except (ArgumentError, ValueError):  # ValueError: its port is no number
        return  # making the checker or engine explains it
    path = parsed.database
    if parsed.get_backend_name() != "sqlite" or not path or path.startswith((":memory:", "file:")):
        return
    if not Path(path).exists():
        raise StoreUnavailableError(
            f"the file {path} does not exist. Check the path (sqlite:///relative.db, sqlite:////absolute.db). "
            f"Type: idempotent migrate upgrade --url {url_word(url)}{f' --table {shlex.quote(table)}' if table else ''}"
        )


def _limit_connecting(engine: Engine) -> None:
    if engine.dialect.name != "postgresql":
        return  # PyMySQL gives up after ten seconds

    @event.listens_for(engine, "do_connect")
    def _limit(_dialect: Any, _record: Any, _args: Any, params: dict[str, Any]) -> None:
        # libpq waits for an unreachable host as long as TCP does, which is minutes.
        params.setdefault("connect_timeout", _CONNECT_TIMEOUT_S)


def parsed_key(text: str) -> Key:
    """The key of a text on the command line. Raises typer.BadParameter: not a key."""
    try:
        key = key_from_text(text)
    except ValueError:
        key = None  # %XX that is not UTF-8
    if key is None:
        raise typer.BadParameter(
            f"{text!r} is not a key: write subject:group:id as `idempotent keys list` shows it, or 40 hex digits"
        )
    return key
