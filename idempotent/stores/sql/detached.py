"""DetachedConnections: connections of a checker's own, so that no message pays for a pool."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine

from idempotent.stores.idle import Idle
from idempotent.stores.sql.cursor import DriverConnection
from idempotent.stores.sql.dialects import dialect_for


@dataclass(frozen=True, slots=True, eq=False)
class Detached:
    """A connection outside its engine's pool.

    Attributes:
        connection: as SQLAlchemy sees it.
        driver: as the driver sees it.
    """

    connection: Connection
    driver: DriverConnection

    @property
    def intact(self) -> bool:
        """Whether both still are the same connection, after an application had it."""
        connection = self.connection
        if connection.closed or connection.invalidated:
            return False
        return connection.connection.dbapi_connection is self.driver.raw


class DetachedConnections:
    """Connections made by an engine and kept outside its pool, which is left to the application.

    A checkout, and the rollback with which a pool takes a connection back, cost half as much as a statement.

    Args:
        engine: who makes them.
        autocommit: whether each statement is final at once.
    """

    def __init__(self, engine: Engine, *, autocommit: bool) -> None:
        """Open nothing yet."""
        self._engine = engine
        self._autocommit = autocommit
        self._idle: Idle[Detached] = Idle()
        self.put: Final = self._idle.put
        """Keep one whose transaction is over."""

    def __bool__(self) -> bool:
        return bool(self._idle)

    def take(self) -> Detached:
        """One that is idle, or a new one.

        Raises:
            SQLAlchemyError: the database cannot be reached, or refuses.
        """
        return self._idle.take() or self._connected()

    def _connected(self) -> Detached:
        connection = self._engine.connect()
        raw = connection.connection.dbapi_connection
        try:
            if self._autocommit:
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            # Out of the pool: kept connections must not use up the application's.
            connection.detach()
            dialect_for(self._engine.dialect).prepare(raw)
            return Detached(connection, DriverConnection(raw))
        except BaseException:
            _close(connection, raw)
            raise

    @staticmethod
    def discard(detached: Detached) -> None:
        """Close one. Never raises."""
        _close(detached.connection, detached.driver.raw)

    def close(self) -> None:
        """Close what is idle; a connection in use is closed by being forgotten."""
        while (detached := self._idle.take()) is not None:
            self.discard(detached)


def _close(connection: Connection, raw: Any) -> None:
    # Detached from its pool, it has nobody else to close it; whether it is still alive does not matter.
    with contextlib.suppress(Exception):
        raw.close()
    with contextlib.suppress(Exception):
        connection.invalidate()
