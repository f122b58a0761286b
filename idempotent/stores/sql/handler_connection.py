"""HandlerConnection: an SQLAlchemy connection that one message, or one group, may use."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import Connection, Dialect
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection, PoolResetState


class HandlerConnection(Connection):
    """A connection that is lent many times: each time as an object of its own, which ends with the loan.

    A handler may keep the object, or a Session on it, and may change its execution options. The next message must
    not notice.

    Attributes:
        raw_connection_taken: how often `connection` was asked for, the way to the driver's connection and to cursors
            that are not watched. SQLAlchemy asks once for a COMMIT.
    """

    raw_connection_taken = 0

    @property
    def connection(self) -> PoolProxiedConnection:
        """The connection of the pool, as SQLAlchemy documents it."""
        self.raw_connection_taken += 1
        return cast("PoolProxiedConnection", _WithDriver(super().connection, self.dialect))

    @property
    def driver(self) -> Any:
        """The driver's connection, for the library's own use: it does not count as the handler's use of the driver."""
        return self.dialect.get_driver_connection(cast("Any", super().connection.dbapi_connection))

    @property
    def info(self) -> dict[Any, Any]:
        """The dictionary of the connection, as SQLAlchemy documents it."""
        connection = self._dbapi_connection
        return super().info if connection is None else connection.info

    def lend(self) -> HandlerConnection:
        """A new object over the same driver connection, as the engine made it."""
        lent = HandlerConnection.__new__(HandlerConnection)
        lent.__dict__.update(self.__dict__)  # as copy.copy(), in a third of the time
        return lent

    def restore_options(self, lender: HandlerConnection) -> None:
        """Undo `execution_options()`, which changes a connection for good."""
        self._execution_options = lender._execution_options

    def end(self) -> None:
        """End the loan: from now on each use raises, "This Connection is closed"."""
        self._dbapi_connection = None


def driver_of(connection: Connection) -> Any:
    """The driver's connection behind one of SQLAlchemy's, for the library's own use."""
    return (
        connection.driver
        if isinstance(connection, HandlerConnection)
        else connection.connection.driver_connection
    )


class _WithDriver:
    """A detached connection of the pool, of which SQLAlchemy says that its driver's connection is None."""

    __slots__ = ("_connection", "_dialect")

    def __init__(self, connection: PoolProxiedConnection, dialect: Dialect) -> None:
        self._connection = connection
        self._dialect = dialect

    @property
    def driver_connection(self) -> Any:
        return self._dialect.get_driver_connection(cast("Any", self._connection.dbapi_connection))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class _Entry(ConnectionPoolEntry):
    """Stands for the entry that the pool no longer has of a detached connection."""

    def __init__(self, connection: PoolProxiedConnection) -> None:
        self.dbapi_connection = connection.dbapi_connection
        self.driver_connection = connection.driver_connection
        self._info = connection.info

    @property
    def info(self) -> Any:
        """What the listeners of the `connect` event have put there."""
        return self._info


def check_in(lender: HandlerConnection) -> None:
    """Reset a connection between two messages as its engine's pool would: fire the `reset` and `checkin` events.

    Costs nothing without listeners. Exceptions of the listeners pass through.
    """
    events = lender.engine.pool.dispatch
    if events.reset or events.checkin:
        connection = lender.connection
        raw, entry = connection.dbapi_connection, _Entry(connection)
        events.reset(
            raw, entry, PoolResetState(transaction_was_reset=False, terminate_only=False, asyncio_safe=True)
        )
        connection.rollback()
        events.checkin(raw, entry)


def check_out(lender: HandlerConnection) -> None:
    """Fire the `checkout` event of the engine's pool, as for a connection that is taken from the pool."""
    events = lender.engine.pool.dispatch
    if events.checkout:
        connection = lender.connection
        events.checkout(connection.dbapi_connection, _Entry(connection), connection)
