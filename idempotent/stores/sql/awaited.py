"""The asyncio drivers' connections, as the synchronous text over them sees them.

Each class has those parts of a synchronous driver's connection that this library uses, under the same names. They are
read from the driver's own connection: a driver that lacks one raises an AttributeError, which is never taken for an
answer. Whatever awaits has to run in a greenlet; `close` never awaits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any, Final

from sqlalchemy.util import await_only

from idempotent.stores.sql.bridge import running_loop

_NO_BACKSLASH_ESCAPES: Final = 512
_QUIT: Final = b"\x01\x00\x00\x00\x01"
"""MySQL's COM_QUIT, as a whole packet."""


class AwaitedConnection(ABC):
    """A connection of an asyncio driver.

    Args:
        adapted: SQLAlchemy's adapter around the driver's connection.
        driver: the driver's own connection.
    """

    keeps_plans = False
    """Whether the driver prepares frequent statements."""

    def __init__(self, adapted: Any, driver: Any) -> None:
        """Belong to the running event loop."""
        self._adapted = adapted
        self.driver: Final = driver
        self.loop: Final = asyncio.get_running_loop()

    @abstractmethod
    def cursor(self) -> Any:
        """A cursor for the statements of this library."""

    @abstractmethod
    def fileno(self) -> int:
        """The number of the socket."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether a task waits for an answer on this connection, or for its turn to send a statement."""

    @abstractmethod
    def _terminate(self) -> None:
        """Close the connection without awaiting. Another task that waits for an answer gets an error."""

    def rollback(self) -> None:
        """Roll back."""
        self._adapted.rollback()

    def close(self) -> None:
        """Close the connection, from any thread, without awaiting."""
        if self.loop is running_loop() or self.loop.is_closed():
            self._terminate()
        else:
            try:
                self.loop.call_soon_threadsafe(self._terminate_quietly)
            except RuntimeError:  # closed meanwhile
                self._terminate()

    def _terminate_quietly(self) -> None:
        with contextlib.suppress(Exception):
            self._terminate()


class AwaitedPsycopg(AwaitedConnection):
    """A psycopg.AsyncConnection."""

    keeps_plans = True

    @property
    def autocommit(self) -> Any:
        return self.driver.autocommit

    @property
    def pgconn(self) -> Any:
        return self.driver.pgconn

    @property
    def info(self) -> Any:
        return self.driver.info

    @property
    def closed(self) -> Any:
        return self.driver.closed

    @property
    def broken(self) -> Any:
        return self.driver.broken

    def cursor(self) -> Any:
        # With RawCursor's reason: psycopg's other cursors search each statement for `%s` in Python.
        return _AwaitedCursor(sys.modules["psycopg"].AsyncRawCursor(self.driver))

    def execute(self, statement: str) -> None:
        await_only(self.driver.execute(statement))

    def fileno(self) -> int:
        number: int = self.driver.fileno()
        return number

    @property
    def busy(self) -> bool:
        return _is_wanted(self.driver.lock)

    def _terminate(self) -> None:
        if self.busy:
            # The event loop watches the number of its socket, which must not become another socket's before it stops.
            with socket.socket(fileno=os.dup(self.driver.fileno())) as twin:
                twin.shutdown(socket.SHUT_RDWR)
        else:
            self.driver.pgconn.finish()


class AwaitedAsyncmy(AwaitedConnection):
    """An asyncmy.Connection."""

    @property
    def server_status(self) -> Any:
        return self.driver.server_status

    @property
    def encoding(self) -> Any:
        return self.driver._encoding  # noqa: SLF001 - asyncmy shows it nowhere else

    @property
    def charset(self) -> Any:
        return self.driver.character_set_name()

    def get_autocommit(self) -> Any:
        return self.driver.get_autocommit()

    def set_character_set(self, charset: str) -> None:
        # Not by the driver's set_charset, which fails.
        cursor = self.cursor()
        cursor.execute(f"SET NAMES {charset}")
        self.driver._charset = charset  # noqa: SLF001 - see above
        self.driver._encoding = "utf8"  # noqa: SLF001

    def cursor(self) -> Any:
        return _AwaitedCursor(self.driver.cursor(), self._adapted)

    def fileno(self) -> int:
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    @property
    def busy(self) -> bool:
        return _is_wanted(self._adapted._execute_mutex) or self._is_read  # noqa: SLF001 - SQLAlchemy's

    @property
    def _is_read(self) -> bool:
        """Whether a task waits for bytes: for the answer to a command that takes no mutex, such as ROLLBACK."""
        protocol = getattr(self.driver, "_proto", None)  # asyncmy has it since 0.2.12
        return getattr(protocol, "_read_waiter", None) is not None

    @property
    def _transport(self) -> Any:
        return self.driver._transport  # noqa: SLF001 - asyncmy shows it nowhere else

    def _terminate(self) -> None:
        transport, is_idle = self._transport, not self.busy
        if transport is None:
            return
        if self.loop.is_closed():
            _bury(transport)
        elif is_idle and self.driver.connected:
            transport.write(_QUIT)
            transport.close()
        else:
            transport.abort()
        self.driver.close()


class _AwaitedCursor:
    """A cursor of an asyncio driver. It reads all rows together with the answer: each await takes a while.

    Args:
        cursor: the driver's own cursor.
        adapted: SQLAlchemy's adapter around an asyncmy connection, which would mix up the answers of two tasks.
    """

    __slots__ = ("_adapted", "_cursor", "_rows")

    def __init__(self, cursor: Any, adapted: Any = None) -> None:
        self._cursor = cursor
        self._adapted = adapted
        self._rows: Sequence[Any] = ()

    @property
    def rowcount(self) -> Any:
        return self._cursor.rowcount

    @property
    def lastrowid(self) -> Any:
        return self._cursor.lastrowid

    def execute(self, statement: str, params: Sequence[Any] = (), **options: Any) -> None:
        if self._adapted is None:
            await_only(self._execute(statement, params, options))
            return
        try:
            await_only(self._execute_alone(statement, params))
        except Exception as error:
            self._adapted._handle_exception(error)  # noqa: SLF001 - an AttributeError of a closed connection

    def fetchall(self) -> Sequence[Any]:
        rows, self._rows = self._rows, ()
        return rows

    def close(self) -> None:
        self._cursor, self._rows = None, ()

    async def _execute(self, statement: str, params: Sequence[Any], options: dict[str, Any]) -> None:
        cursor = self._cursor
        self._rows = ()
        await cursor.execute(statement, params, **options)
        if cursor.description is not None:
            self._rows = await cursor.fetchall()

    async def _execute_alone(self, statement: str, params: Sequence[Any]) -> None:
        async with self._adapted._execute_mutex:  # noqa: SLF001 - SQLAlchemy's
            if spoils_bytes(self._adapted.driver_connection):
                statement, params = in_hex(statement, params)
            await self._execute(statement, params, {})


def spoils_bytes(driver: Any) -> bool:
    """Whether the session's sql_mode is NO_BACKSLASH_ESCAPES: asyncmy's escapes of bytes mean something else there."""
    return bool(getattr(driver, "server_status", 0) & _NO_BACKSLASH_ESCAPES)


def in_hex(statement: str, params: Sequence[Any], *, empty: bool = False) -> tuple[str, list[Any]]:
    """A statement with its bytes in it, as PyMySQL sends them; `empty`: only those of no length."""
    chosen = [isinstance(each, bytes) and not (empty and each) for each in params]
    shown = [f"X'{each.hex()}'" if here else "%s" for each, here in zip(params, chosen, strict=True)]
    text = "".join(chain.from_iterable(zip_longest(statement.split("%s"), shown, fillvalue="")))
    return text, [each for each, here in zip(params, chosen, strict=True) if not here]


def awaited(adapted: Any, driver: Any) -> AwaitedConnection:
    """The connection of an asyncio driver.

    Args:
        adapted: SQLAlchemy's adapter around the driver's connection.
        driver: the driver's own connection, of psycopg or asyncmy.
    """
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(driver, psycopg.AsyncConnection):
        return AwaitedPsycopg(adapted, driver)
    return AwaitedAsyncmy(adapted, driver)


def _is_wanted(lock: asyncio.Lock) -> bool:
    """Whether a task has a lock, or waits for it: one that was released has no owner until its next one wakes up."""
    return lock.locked() or bool(lock._waiters)  # noqa: SLF001 - shown nowhere else


def _bury(transport: Any) -> None:
    """Close the socket of a transport whose event loop is closed."""
    with contextlib.suppress(Exception):
        transport.abort()
    with contextlib.suppress(Exception):
        # What abort() would have had the loop call. uvloop's transports lack it: they end with their loop.
        transport._call_connection_lost(None)  # noqa: SLF001
