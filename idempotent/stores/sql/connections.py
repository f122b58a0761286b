"""A checker's own connections, kept open: a pool checkout for each statement adds half of the statement's time."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final, TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.util import await_only

from idempotent.errors import ConfigurationError, SchemaError, StoreError
from idempotent.schema import SCHEMA_NAME, SCHEMA_RULE
from idempotent.stores.sql.answers import limit_answer
from idempotent.stores.sql.bridge import Bridge
from idempotent.stores.sql.cursor import DriverConnection, query, transaction
from idempotent.stores.sql.detached import Detached, DetachedConnections
from idempotent.stores.sql.dialects import SqlDialect, dialect_for
from idempotent.stores.sql.faults import KEPT, Fault, as_store_error, fault_of
from idempotent.stores.sql.loops import LoopConnections
from idempotent.stores.sql.sockets import LONGEST_S

T = TypeVar("T")

_TRIES_LEFT: Final = (2, 1, 0)


class Connections:
    """Driver connections in autocommit, outside the engine's pool. The most recently used one is taken next.

    Args:
        engine: creates the connections.
        table: the table's name, for error messages.
        located_by: the table that tells, unless `schema` does, where all are; None: they need not be located.
        schema: see `SqlDialect`.
        silence_s: see `limit_silence`.
        waits_briefly: see `DetachedConnections`.

    Raises:
        ConfigurationError: the database or its driver is not supported, or SQLite is to have a schema.
    """

    _kind: type[DetachedConnections] = DetachedConnections
    _pause: Callable[[float], object] = staticmethod(time.sleep)

    def __init__(
        self,
        engine: Engine,
        table: str,
        *,
        located_by: str | None = None,
        schema: str | None = None,
        silence_s: float = LONGEST_S,
        waits_briefly: bool = False,
    ) -> None:
        """Check the dialect. The first statement connects."""
        dialect_for(engine.dialect)
        self.engine: Final = engine
        self._table = table
        self._located_by = located_by
        self._schema = schema
        if engine.dialect.name == "sqlite" and schema not in (None, "main"):
            raise ConfigurationError(
                f"SQLite has no schema {schema!r}: the tables are in the file of the URL"
            )
        self._own = self._kind(engine, autocommit=True, silence_s=silence_s, waits_briefly=waits_briefly)

    @cached_property
    def dialect(self) -> SqlDialect:
        """The properties of this database. A server is asked first for its product and version, and for the schema.

        Raises:
            SchemaError: the table that tells the schema is missing.
            StoreError: the database did not answer.
        """
        if self.engine.dialect.name == "sqlite":
            return dialect_for(self.engine.dialect)
        return self.run(self._look, answer_s=LONGEST_S)

    def _look(self, driver: DriverConnection) -> SqlDialect:
        dialect, schema = dialect_for(self.engine.dialect), self._schema
        if schema is None and self._located_by is not None:
            # This session is one that no handler has changed.
            schema = query(driver, dialect.where_is(self._located_by))[0][0]
        if schema and not SCHEMA_NAME.fullmatch(schema):
            raise SchemaError(f"the tables are in the schema {schema!r}, but {SCHEMA_RULE}: rename it")
        return replace(dialect, schema=schema)

    def run(
        self,
        work: Callable[..., T],
        *arguments: Any,
        retry_locked: bool = True,
        answer_s: float | None = None,
    ) -> T:
        """Run repeatable statements on a connection in autocommit.

        After a dead connection, a deadlock or a lock wait it tries again, at most twice.

        Args:
            work: called with the connection and the arguments.
            arguments: passed to `work`.
            retry_locked: also after a lock wait.
            answer_s: how long each answer may take, in seconds; None: any time.

        Raises:
            StoreError: the database failed or did not answer.
        """
        # An answer that was lost stays lost, whatever becomes of the next try.
        lost: StoreError | None = None
        for remaining in _TRIES_LEFT:
            try:
                detached = self._own.take()
            except Exception as error:
                if lost is not None:
                    raise lost from error
                if not isinstance(error, self._driver_errors):
                    raise
                # Also the driver's own: the connection may die while it is prepared.
                raise as_store_error(error, self.engine, self._table) from error
            try:
                if detached.driver.answer_s != answer_s:
                    limit_answer(detached.driver, answer_s)
                answer = work(detached.driver, *arguments)
            except Exception as error:
                if isinstance(error, StoreError) or not isinstance(error, self._driver_errors):
                    self._own.discard(detached)
                    if lost is not None:
                        raise lost from error
                    raise
                fault = fault_of(error, self.engine, detached.driver.raw)
                failed = as_store_error(error, self.engine, self._table, detached.driver.raw)
                self._give_back_or_discard(detached, fault)
                given_up = fault is Fault.LOCKED and not retry_locked
                if fault is Fault.DISCONNECTED:
                    lost = failed
                if remaining and not given_up and self._worth_another_try(fault):
                    continue
                raise lost or failed from error
            except BaseException:
                self._own.discard(detached)  # interrupted in the middle: the connection's state is unknown
                raise
            self._own.put(detached)
            return answer
        raise AssertionError("unreachable")

    def run_atomically(self, work: Callable[..., T], *arguments: Any, answer_s: float | None = None) -> T:
        """Like `run`, with the statements in one new transaction.

        Args:
            work: called with the connection and the arguments.
            arguments: passed to `work`.
            answer_s: see `run`.

        Raises:
            StoreError: the database failed or did not answer.
        """

        def in_transaction(driver: DriverConnection) -> T:
            with transaction(driver):
                return work(driver, *arguments)

        return self.run(in_transaction, answer_s=answer_s)

    def close(self) -> None:
        """Close the idle connections; those in use are closed when they are given back."""
        self._own.close()

    @property
    def _driver_errors(self) -> tuple[type[BaseException], ...]:
        return (self.engine.dialect.loaded_dbapi.Error, SQLAlchemyError, OSError)

    def _worth_another_try(self, fault: Fault) -> bool:
        if fault is Fault.DISCONNECTED:
            return True
        # SQLite has already waited its busy timeout for the current writer.
        if fault in (Fault.ABORTED, Fault.LOCKED) and self.engine.dialect.name != "sqlite":
            self._pause(random.uniform(0.001, 0.02))
            return True
        return False

    def _give_back_or_discard(self, detached: Detached, fault: Fault) -> None:
        if fault in KEPT:
            self._own.put(detached)
        else:
            self._own.discard(detached)
            self.close()


class AwaitedConnections(Connections):
    """The same through an asyncio driver: in the caller's greenlet, or on the private loop of a bridge.

    A driver has no limit for an answer: `answer_s` ends the wait of a plain thread, and no other.

    Args:
        bridge: has the private loop.
        engine: as above, of an AsyncEngine; and so are the other arguments.
    """

    _kind = LoopConnections
    _pause = staticmethod(lambda seconds: await_only(asyncio.sleep(seconds)))

    def __init__(self, bridge: Bridge, engine: Engine, table: str, **options: Any) -> None:
        super().__init__(engine, table, **options)
        self._bridge = bridge
        self._dialect: SqlDialect | None = None

    # No cached_property: in Python 3.11 it has a lock, for which an event loop must not wait.
    @property
    def dialect(self) -> SqlDialect:
        if self._dialect is None:
            self._dialect = self._bridge.run(super().run, self._look, within_s=LONGEST_S)
        return self._dialect

    @dialect.setter
    def dialect(self, dialect: SqlDialect) -> None:
        self._dialect = dialect

    def run(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        within_s: float | None = options.get("answer_s")
        answer: T = self._bridge.run(partial(self._run, work, *arguments, **options), within_s=within_s)
        return answer

    def _run(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        _ = self.dialect  # asked for before a connection is in use
        return super().run(work, *arguments, **options)
