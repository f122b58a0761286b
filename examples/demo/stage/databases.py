"""Engines for the tables of a run. RunTable: a business table, in which only the checker prevents a second row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import URL, Engine, Table, event, func, make_url, select, text
from sqlalchemy.exc import DBAPIError

from idempotent.stores.sql.engines import engine_from
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


def async_url(url: str) -> URL:
    """The URL of the same database through an asyncio driver; not for SQLite."""
    parsed = make_url(url)
    driver = {"postgresql": "postgresql+psycopg_async"}.get(parsed.get_backend_name(), "mysql+asyncmy")
    # asyncmy does not encrypt unless it is told to, and has no option against it.
    return parsed.set(drivername=driver).difference_update_query(["ssl_disabled"])


@contextmanager
def engine_at(url: str, table: str) -> Iterator[Engine]:
    """An engine for work on `table`, disposed of at the end. Raises StoreError: the database failed."""
    engine = tuned_engine(url)
    try:
        yield engine
    except DBAPIError as error:
        raise as_store_error(error, engine, table) from error
    finally:
        engine.dispose()


class RunTable:
    """A table of a run, created empty and removed at the end.

    With `write_ahead` an SQLite file is switched to a write-ahead log, which it keeps.
    """

    def __init__(self, url: str, table: Table, *, write_ahead: bool = True) -> None:
        self.url: Final = url
        self.table: Final = table
        self._write_ahead = write_ahead

    def prepare(self) -> None:
        """Create it, empty. Raises StoreError: the database cannot be used."""
        with engine_at(self.url, self.table.name) as engine:
            if self._write_ahead and engine.dialect.name == "sqlite":
                # Readers of the file go on while a consumer writes; other databases always let them.
                with engine.connect() as connection:
                    connection.execute(text("PRAGMA journal_mode=WAL"))
            self.table.drop(engine, checkfirst=True)
            self.table.create(engine)

    def clean(self) -> None:
        """Remove it. Raises StoreError: the database does not answer."""
        with engine_at(self.url, self.table.name) as engine:
            self.table.drop(engine, checkfirst=True)

    def rows(self, *columns: str) -> Iterator[tuple[Any, ...]]:
        """These columns of every row, in the order of the primary key."""
        chosen = select(*(self.table.c[name] for name in columns)).order_by(*self.table.primary_key)
        with engine_at(self.url, self.table.name) as engine, engine.connect() as connection:
            yield from map(tuple, connection.execution_options(yield_per=10_000).execute(chosen))

    def count(self) -> int:
        """The number of rows."""
        with engine_at(self.url, self.table.name) as engine, engine.connect() as connection:
            return connection.scalar(select(func.count()).select_from(self.table)) or 0
