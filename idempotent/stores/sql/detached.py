"""DetachedConnections: a checker's own connections, so that no message pays for a pool checkout."""

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
        connection: SQLAlchemy's connection.
        driver: the driver's connection behind it.
    """

    connection: Connection
    driver: DriverConnection

    @property
    def intact(self) -> bool:
        """Whether both are still the same open connection, after the application used it."""
        connection = self.connection
        if connection.closed or connection.invalidated:
            return False
        return connection.connection.dbapi_connection is self.driver.raw


class DetachedConnections:
    """Connections created by an engine and kept outside its pool, which stays free for the application.

    A checkout, and the rollback with which a pool takes a connection back, cost half as much as a statement.

    Args:
        engine: creates the connections.
        autocommit: whether each statement commits immediately.
    """

    def __init__(self, engine: Engine, *, autocommit: bool) -> None:
        """Start without connections."""
        self._engine = engine
        self._autocommit = autocommit
        self._idle: Idle[Detached] = Idle()
        self.put: Final = self._idle.put
        """Keep a connection whose transaction has ended."""

    def __bool__(self) -> bool:
        return bool(self._idle)

    def take(self) -> Detached:
        """An idle connection, or a new one.

        Raises:
            SQLAlchemyError: the database is unreachable, or refuses the connection.
        """
        return self._idle.take() or self._connected()

    def _connected(self) -> Detached:
        connection = self._engine.connect()
        raw = connection.connection.dbapi_connection
        try:
            if self._autocommit:
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            # Detached from the pool: these connections must not use up the application's limit.
            connection.detach()
            dialect_for(self._engine.dialect).prepare(raw)
            return Detached(connection, DriverConnection(raw))
        except BaseException:
            _close(connection, raw)
            raise

    @staticmethod
    def discard(detached: Detached) -> None:
        """Close a connection. Never raises."""
        _close(detached.connection, detached.driver.raw)

    def close(self) -> None:
        """Close the idle connections. A connection in use closes when its last reference is gone."""
        while (detached := self._idle.take()) is not None:
            self.discard(detached)


def _close(connection: Connection, raw: Any) -> None:
    # No pool owns it: close it here. Errors are ignored, because the connection may be dead already.
    with contextlib.suppress(Exception):
        raw.close()
    with contextlib.suppress(Exception):
        connection.invalidate()
