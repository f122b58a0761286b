"""AsyncHandlerTransaction: a HandlerTransaction in greenlets, on a connection that serves one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from idempotent.checkers.sql.asynchronous.sessions import AsyncSessions
from idempotent.checkers.sql.handler_transaction import HandlerTransaction
from idempotent.errors import ConfigurationError, TransactionEscapedError
from idempotent.stores.sql.awaited import AwaitedConnection
from idempotent.stores.sql.bridge import Bridge, may_await, running_loop

if TYPE_CHECKING:
    from idempotent.stores.sql.detached import DetachedConnections
    from idempotent.stores.sql.dialects import SqlDialect

_STILL_RUNNING: Final = (
    "a statement of the handler's session still runs after the handler has returned, so it might not commit together "
    "with the key: await all tasks that use the session before you return"
)


class AsyncHandlerTransaction(HandlerTransaction):
    """A HandlerTransaction whose statements are awaited.

    Args:
        bridge: runs the calls of plain threads about a transaction that was opened for them.
        connections: as for `HandlerTransaction`; and so are the other arguments.
    """

    _session_kind = AsyncSession
    _sessions: AsyncSessions

    def __init__(
        self,
        bridge: Bridge,
        connections: DetachedConnections,
        dialect: SqlDialect,
        sessions: AsyncSessions,
        *,
        strict: bool,
    ) -> None:
        self._bridge = bridge
        self._loop = asyncio.get_running_loop()
        self._async_connection: AsyncConnection | None = None
        self._async_session: AsyncSession | None = None
        super().__init__(connections, dialect, sessions, strict=strict)

    def argument(self, kind: type) -> AsyncSession | AsyncConnection:
        if issubclass(kind, AsyncConnection):
            return self._connection
        if self._async_session is None:
            self._async_session = self._sessions.around(self.session, self._connection)
        return self._async_session

    @property
    def _connection(self) -> AsyncConnection:
        if self._async_connection is None:
            self._async_connection = AsyncConnection(AsyncEngine(self.connection.engine), self.connection)
        return self._async_connection

    def flush(self) -> None:
        """As `HandlerTransaction.flush`.

        Raises:
            TransactionEscapedError: a task of the handler still uses the session.
            ConfigurationError: the transaction belongs to another event loop.
        """
        self._bridge.run(self._flush)

    def _flush(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigurationError("the claim belongs to another event loop; complete it where it was made")
        self._demand_quiet()
        super().flush()

    def demand_open(self) -> None:
        self._demand_quiet()
        super().demand_open()

    def _demand_quiet(self) -> None:
        if self._raw.busy:
            self.escaped = self.escaped or _STILL_RUNNING
            raise TransactionEscapedError(self.escaped)

    @property
    def _raw(self) -> AwaitedConnection:
        raw: AwaitedConnection = self.driver.raw
        return raw

    def close(self, *, reuse: bool = True) -> None:
        """As `HandlerTransaction.close`; where it cannot await, or must not, it terminates the connection.

        Raises:
            CancelledError: this was cancelled while it rolled back; the connection is terminated.
        """
        if not self._has_connection:
            return
        if self._bridge.owns(self._loop) and running_loop() is not self._loop:
            with contextlib.suppress(Exception):
                self._bridge.run(self._close, reuse)
        self._close(reuse)

    def _close(self, reuse: bool) -> None:  # noqa: FBT001 - as Bridge.run passes it
        if not self._has_connection:
            return
        here = running_loop() is self._loop and may_await()
        if reuse and here and not self._raw.busy:
            try:
                super().close()
            except BaseException:
                self._terminate()
                raise
        else:
            self._terminate()

    def _terminate(self) -> None:
        """Close the connection, and only then the session: on an open connection it would send a ROLLBACK."""
        self._end()
        self._connections.discard(self._detached)
        self.connection.end()
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._sessions.close(self._session)
        self._tell_end()
