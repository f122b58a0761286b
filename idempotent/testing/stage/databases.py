"""Engines of the demo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Engine, event
from sqlalchemy.exc import DBAPIError

from idempotent.stores.sql.connections import engine_from
from idempotent.stores.sql.faults import as_store_error

_CACHE_KB: Final = 64 * 1024


def demo_engine(url: str) -> Engine:
    """An engine. On SQLite it is made for many small commits, which a killed process cannot undo either.

    Raises:
        ConfigurationError: not the URL of a supported database.
        MissingExtraError: its driver is not installed.
    """
    engine = engine_from(url)
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def _tune(connection: Any, _record: Any) -> None:
            # Keys are random, so every page of their index is always in use.
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KB}")
            # With a write-ahead log this risks the last commits at a power cut, and nothing at a kill.
            connection.execute("PRAGMA synchronous=NORMAL")

    return engine


@contextmanager
def engine_at(url: str, table: str) -> Iterator[Engine]:
    """An engine for what has to be done to `table`.

    Raises:
        StoreError: the database did not do its part; says which and what to do.
    """
    engine = demo_engine(url)
    try:
        yield engine
    except DBAPIError as error:
        raise as_store_error(error, engine, table) from error
    finally:
        engine.dispose()
