"""DetachedConnections: connections of a checker's own, so that no message pays for a pool."""

from __future__ import annotations

import contextlib

from sqlalchemy import Connection, Engine

from idempotent.idle import Idle
from idempotent.sql.dialects import dialect_for


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
        self._idle: Idle[Connection] = Idle()

    def __bool__(self) -> bool:
        return bool(self._idle)

    def take(self) -> Connection:
        """One that is idle, or a new one.

        Raises:
            SQLAlchemyError: the database cannot be reached, or refuses.
        """
        idle = self._idle.take()
        if idle is not None:
            return idle
        connection = self._engine.connect()
        try:
            if self._autocommit:
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            # Out of the pool: kept connections must not use up the application's.
            connection.detach()
            dialect_for(self._engine.dialect).prepare(connection.connection.dbapi_connection)
        except BaseException:
            self.discard(connection)
            raise
        return connection

    def put(self, connection: Connection) -> None:
        """Keep one whose transaction is over."""
        if connection.closed or connection.invalidated:
            self.discard(connection)
        else:
            self._idle.put(connection)

    @staticmethod
    def discard(connection: Connection) -> None:
        """Close one. Never raises."""
        # Detached from its pool, it has nobody else to close it; whether it is still alive does not matter.
        with contextlib.suppress(Exception):
            connection.connection.dbapi_connection.close()  # type: ignore[union-attr]
        with contextlib.suppress(Exception):
            connection.invalidate()

    def close(self) -> None:
        """Close what is idle; a connection in use is closed by being forgotten."""
        while (connection := self._idle.take()) is not None:
            self.discard(connection)
