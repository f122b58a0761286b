"""Connections of a checker's own, kept ready: a pool checkout for each statement costs half as much again."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final, TypeVar

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from idempotent.errors import ConfigurationError, MissingExtraError, StoreError
from idempotent.stores.sql.cursor import DriverConnection, execute
from idempotent.stores.sql.detached import Detached, DetachedConnections
from idempotent.stores.sql.dialects import SqlDialect, dialect_for
from idempotent.stores.sql.faults import Fault, as_store_error, fault_of

T = TypeVar("T")

_EXTRAS: Final = {"pymysql": "mysql", "psycopg": "postgres"}
_TRIES_LEFT: Final = (2, 1, 0)


def engine_from(engine_or_url: Engine | URL | str) -> Engine:
    """The engine itself, or one made from a URL.

    Raises:
        ConfigurationError: not a URL of a supported database.
        MissingExtraError: its driver is not installed.
    """
    if isinstance(engine_or_url, Engine):
        engine = engine_or_url
    else:
        try:
            engine = create_engine(make_url(engine_or_url))
        except ModuleNotFoundError as error:
            package = error.name or "the driver"
            raise MissingExtraError(package, _EXTRAS.get(package, "all")) from error
        except (ArgumentError, NoSuchModuleError) as error:
            raise ConfigurationError(
                "not the URL of a supported database. Examples: sqlite:///app.db, "
                "mysql+pymysql://user:password@host/db, postgresql+psycopg://user:password@host/db"
            ) from error
    if engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:"):
        raise ConfigurationError(
            "an in-memory SQLite database belongs to one connection; use a file, or MemoryChecker"
        )
    return engine


class Connections:
    """Driver connections in autocommit, outside the engine's pool: the last one used is the next one taken.

    Args:
        engine: whose connections.
        table: for error messages.

    Raises:
        ConfigurationError: the database or its driver is not supported.
    """

    def __init__(self, engine: Engine, table: str) -> None:
        """Open nothing yet."""
        dialect_for(engine.dialect)
        self.engine: Final = engine
        self._table = table
        self._own = DetachedConnections(engine, autocommit=True)

    @cached_property
    def dialect(self) -> SqlDialect:
        """What is special about this database. MySQL or MariaDB, and which version, takes a connection to know.

        Raises:
            StoreError: the store did not answer.
        """
        if self.engine.dialect.name == "mysql" and not self._own:
            self.run(lambda _: None)
        return dialect_for(self.engine.dialect)

    def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run statements that may be repeated, on a connection in autocommit.

        A dead connection, a deadlock or a lock wait costs another try, at most two.

        Args:
            work: called with the connection and the arguments.
            arguments: for it.

        Raises:
            StoreError: the store did not do its part.
        """
        for remaining in _TRIES_LEFT:
            try:
                detached = self._own.take()
            except self._driver_errors as error:  # the driver's own too: it may die while it is prepared
                raise as_store_error(error, self.engine, self._table) from error
            try:
                answer = work(detached.driver, *arguments)
            except Exception as error:
                if isinstance(error, StoreError) or not isinstance(error, self._driver_errors):
                    self._own.discard(detached)
                    raise
                fault = fault_of(error, self.engine, detached.driver.raw)
                self._give_back_or_discard(detached, fault)
                if remaining and self._worth_another_try(fault):
                    continue
                raise as_store_error(error, self.engine, self._table, detached.driver.raw) from error
            except BaseException:
                self._own.discard(detached)  # interrupted in the middle: its state is anybody's guess
                raise
            self._own.put(detached)
            return answer
        raise AssertionError("unreachable")

    def run_atomically(self, work: Callable[..., T], *arguments: Any) -> T:
        """`run` with the statements in one transaction of its own.

        Args:
            work: called with the connection and the arguments.
            arguments: for it.

        Raises:
            StoreError: the store did not do its part.
        """

        def in_transaction(driver: DriverConnection) -> T:
            with _transaction(driver, self.dialect):
                return work(driver, *arguments)

        return self.run(in_transaction)

    def close(self) -> None:
        """Close what is idle; connections in use are closed by being forgotten."""
        self._own.close()

    @property
    def _driver_errors(self) -> tuple[type[BaseException], ...]:
        return (self.engine.dialect.loaded_dbapi.Error, SQLAlchemyError, OSError)

    def _worth_another_try(self, fault: Fault) -> bool:
        if fault is Fault.DISCONNECTED:
            return True
        # SQLite has already waited its busy timeout for the one writer.
        if fault in (Fault.ABORTED, Fault.LOCKED) and self.dialect.name != "sqlite":
            time.sleep(random.uniform(0.001, 0.02))
            return True
        return False

    def _give_back_or_discard(self, detached: Detached, fault: Fault) -> None:
        if fault is Fault.DISCONNECTED:
            # The server may have closed every idle connection with this one.
            self._own.discard(detached)
            self.close()
        else:
            self._own.put(detached)


@contextlib.contextmanager
def _transaction(driver: DriverConnection, dialect: SqlDialect) -> Iterator[None]:
    """BEGIN and COMMIT typed by hand, on a driver connection that is in autocommit."""
    execute(driver, "BEGIN IMMEDIATE" if dialect.name == "sqlite" else "BEGIN")
    try:
        yield
        execute(driver, "COMMIT")
    except BaseException:
        with contextlib.suppress(Exception):
            execute(driver, "ROLLBACK")
        raise
