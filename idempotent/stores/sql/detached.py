"""DetachedConnections: a checker's own connections, so that no message pays for a pool checkout."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Engine, NullPool, Pool, QueuePool, event

from idempotent.logs import EventLog
from idempotent.stores.idle import Idle
from idempotent.stores.sql.answers import LEAST_ANSWER_S, connecting_within, limit_answer, limit_connecting
from idempotent.stores.sql.cursor import DriverConnection, execute
from idempotent.stores.sql.dialects import dialect_for
from idempotent.stores.sql.faults import explained
from idempotent.stores.sql.handler_connection import HandlerConnection, check_in, check_out
from idempotent.stores.sql.sockets import LONGEST_S, keep_from_children, limit_silence

log = EventLog(__name__)

_POOL_SIZE: Final = 5  # SQLAlchemy's own, for a pool without a size


@dataclass(frozen=True, slots=True, eq=False)
class Detached:
    """A connection outside its engine's pool.

    Attributes:
        connection: SQLAlchemy's connection, as the engine made it; a message gets `connection.lend()`.
        driver: the driver's connection behind it.
        pool: the engine's pool when it was opened; `Engine.dispose()` makes another one.
        opened_at: when it was opened, by the monotonic clock, in seconds.
        closings: how often the idle ones had been closed by then: one that was in use meanwhile is not kept either.
    """

    connection: HandlerConnection
    driver: DriverConnection
    pool: Pool
    opened_at: float
    closings: int

    @property
    def intact(self) -> bool:
        """Whether the driver's connection is still open behind it, after the application used it."""
        return self.connection.connection.is_valid


class DetachedConnections:
    """Connections created by an engine and kept outside its pool, which stays free for the application.

    A checkout, and the rollback with which a pool takes a connection back, cost half as much as a statement. The
    engine's `pool_size` and `pool_recycle` apply to these connections too, and `Engine.dispose()` closes them.

    Args:
        engine: creates the connections.
        autocommit: whether each statement commits immediately.
        silence_s: see `limit_silence`.
        waits_briefly: whether a lock wait ends after a second, where the session can say so.
    """

    def __init__(
        self, engine: Engine, *, autocommit: bool, silence_s: float = LONGEST_S, waits_briefly: bool = False
    ) -> None:
        """Start without connections."""
        self._engine = engine
        self._autocommit = autocommit
        self._silence_s = silence_s
        self._waits_briefly = waits_briefly
        self._idle = self._new_idle()
        self._closings = 0
        self._kept: Final = _kept_by(engine.pool)
        self._recycle_s: Final = engine.pool._recycle  # noqa: SLF001 - SQLAlchemy has no other way to read it
        _close_with(engine, self)

    def _new_idle(self) -> Idle[Detached]:
        return Idle()

    def __bool__(self) -> bool:
        return bool(self._idle)

    def take(self) -> Detached:
        """An idle connection, or a new one.

        Raises:
            SQLAlchemyError: the database is unreachable, or refuses the connection.
        """
        while (detached := self._idle.take()) is not None:
            if self._is_usable(detached) and self._checks_out(detached):
                return detached
            self.discard(detached)
        return self._connected()

    def put(self, detached: Detached) -> None:
        """Keep a connection that no message has used, or close it, as the engine's pool would."""
        if len(self._idle) < self._kept and self._is_usable(detached):
            self._idle.put(detached)
            if detached.closings != self._closings:  # close() may have looked before it was there
                self._close_idle()
        else:
            self.discard(detached)

    def give_back(self, detached: Detached) -> None:
        """Keep a connection that a message has used and whose transaction has ended. Never raises."""
        try:
            check_in(detached.connection)
        except Exception as error:
            log.warning("connection_not_reset", extra={"error": explained(error)})
            self.discard(detached)
        else:
            self.put(detached)

    def _is_usable(self, detached: Detached) -> bool:
        if detached.pool is not self._engine.pool or detached.closings != self._closings:
            return False
        return self._recycle_s < 0 or time.monotonic() - detached.opened_at <= self._recycle_s

    def _checks_out(self, detached: Detached) -> bool:
        """Whether the listeners of the engine let a handler have this connection."""
        if not self._autocommit:
            try:
                check_out(detached.connection)
            except Exception:
                return False  # the engine's pool would open another one too
        return True

    def _connected(self) -> Detached:
        pool, closings = self._engine.pool, self._closings
        is_limited = self._autocommit and not self._engine.dialect.is_async
        answer_s = max(self._silence_s, LEAST_ANSWER_S)
        with connecting_within(answer_s) if is_limited else contextlib.nullcontext():
            connection, raw = self._opened()
        try:
            dialect = dialect_for(self._engine.dialect)
            if self._autocommit:
                if dialect.in_transaction(raw):  # of a listener to the pool's events, which has set something
                    raw.commit()
                self._read_only_committed(connection.connection.dbapi_connection)
                connection.execution_options(isolation_level="AUTOCOMMIT")
            # Detached from the pool: these connections must not use up the application's limit.
            connection.detach()
            dialect.prepare(raw)
            if self._autocommit:  # the others are the handlers' as well, who chose their character set
                dialect.use_utf8(raw)
            limit_silence(raw, self._silence_s)
            keep_from_children(raw)
            driver = DriverConnection(raw)
            if is_limited:
                limit_answer(driver, answer_s)
            if dialect.settings:
                own = dialect.own_settings if self._autocommit else ""
                # Shorter than an answer may take: what the client gives up must not wait on in the server.
                table_s = math.ceil(answer_s) - 1
                limit = dialect.lock_limit.format(table_s) if self._waits_briefly else ""
                execute(driver, f"{dialect.settings}{own}{limit}")
            return Detached(connection, driver, pool, time.monotonic(), closings)
        except BaseException:
            _close(connection, raw)
            raise

    def _opened(self) -> tuple[HandlerConnection, Any]:
        """A new connection, and the driver's own connection behind it."""
        pool = self._engine.pool
        # Leases are renewed over these: they must not wait for a connection that a handler holds.
        beside = self._autocommit and isinstance(pool, QueuePool) and _has_connected(pool)
        lent = beside_pool(pool).connect() if beside else None
        connection = HandlerConnection(self._engine, lent, _allow_revalidate=False)
        return connection, connection.connection.dbapi_connection

    def _read_only_committed(self, raw: Any) -> None:
        """Raise the isolation level READ UNCOMMITTED: a key that is rolled back later must not count as stored.

        Only MySQL and MariaDB have it: PostgreSQL reads committed rows, and SQLite's connections share no cache.
        """
        dialect = self._engine.dialect
        if dialect.name in ("mysql", "mariadb") and dialect.get_isolation_level(raw) == "READ UNCOMMITTED":
            dialect.set_isolation_level(raw, "READ COMMITTED")

    @staticmethod
    def discard(detached: Detached) -> None:
        """Close a connection. Never raises."""
        _close(detached.connection, detached.driver.raw)

    def close(self) -> None:
        """Close the idle connections; those in use are closed when they are given back."""
        self._closings += 1
        self._close_idle()

    def _close_idle(self) -> None:
        for detached in self._idle.drain():
            self.discard(detached)


def beside_pool(pool: Pool) -> NullPool:
    """A pool that makes the same connections, without a limit."""
    return NullPool(
        pool._creator,  # noqa: SLF001 - as Pool.recreate() does
        echo=pool.echo,
        logging_name=pool._orig_logging_name,  # noqa: SLF001
        _dispatch=pool.dispatch,
        dialect=pool._dialect,  # noqa: SLF001
    )


def _has_connected(pool: Pool) -> bool:
    """Whether the dialect has learnt the server's version, from the pool's first connection, for which others wait."""
    return bool(getattr(pool.dispatch.connect, "_exec_w_sync_once", False))


def _kept_by(pool: Pool) -> int:
    """How many idle connections a pool keeps."""
    if isinstance(pool, NullPool):
        return 0
    size = pool.size() if isinstance(pool, QueuePool) else _POOL_SIZE
    return size or sys.maxsize  # of a QueuePool, 0 means no limit


_opened: Final[WeakKeyDictionary[Engine, WeakSet[DetachedConnections]]] = WeakKeyDictionary()


def _close_with(engine: Engine, connections: DetachedConnections) -> None:
    """Close these connections when the application disposes of the engine."""
    if engine not in _opened:
        _opened[engine] = WeakSet()
        limit_connecting(engine)
        slower = engine._has_events  # noqa: SLF001 - see below
        event.listen(engine, "engine_disposed", _close_all)
        # SQLAlchemy would look for listeners at every statement of the application; this event belongs to connections.
        engine._has_events = slower  # noqa: SLF001
    _opened[engine].add(connections)


def _close_all(engine: Engine) -> None:
    for connections in list(_opened.get(engine, ())):
        connections.close()


def _close(connection: Connection, raw: Any) -> None:
    # No pool owns it: close it here. Errors are ignored, because the connection may be dead already.
    with contextlib.suppress(Exception):
        raw.close()
    with contextlib.suppress(Exception):
        connection.invalidate()
