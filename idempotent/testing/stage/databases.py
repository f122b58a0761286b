"""Engines for the tables of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DBAPIError

from idempotent.stores.sql.connections import engine_from
from idempotent.stores.sql.faults import as_store_error

_CACHE_KB: Final = 64 * 1024


def tuned_engine(url: str) -> Engine:
    """An engine; on SQLite it is tuned for many small commits, which a killed process cannot undo either.

    Raises:
        ConfigurationError: the URL is invalid, or names an unsupported database.
        MissingExtraError: the database's driver is not installed.
    """
    engine = engine_from(url)
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def _tune(connection: Any, _record: Any) -> None:
            # Keys are random, so every page of their index is always in use.
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KB}")
            # With a write-ahead log a power cut may lose the last commits; a kill loses none.
            connection.execute("PRAGMA synchronous=NORMAL")

    return engine


@contextmanager
def engine_at(url: str, table: str) -> Iterator[Engine]:
    """An engine for work on `table`, disposed of at the end.

    Raises:
        StoreError: the database failed; says which and what to do.
    """
    engine = tuned_engine(url)
    try:
        yield engine
    except DBAPIError as error:
        raise as_store_error(error, engine, table) from error
    finally:
        engine.dispose()


def use_write_ahead_log(engine: Engine) -> None:
    """Let readers of an SQLite file go on while a consumer writes; other databases always do."""
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            connection.execute(text("PRAGMA journal_mode=WAL"))
