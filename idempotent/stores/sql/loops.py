"""LoopConnections: DetachedConnections of an asyncio driver; each serves only the event loop that opened it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakSet, ref

from sqlalchemy import Engine, QueuePool
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.util import await_only

from idempotent.forks import free_in_child, generation
from idempotent.stores.idle import Idle
from idempotent.stores.sql.awaited import awaited
from idempotent.stores.sql.bridge import running_loop
from idempotent.stores.sql.detached import Detached, DetachedConnections, beside_pool
from idempotent.stores.sql.handler_connection import HandlerConnection

C = TypeVar("C")

_POLL_S: Final = 0.005
# Of a parent process: a finalizer in the child would end the parent's sessions.
_inherited: Final[list[object]] = []


class LoopConnections(DetachedConnections):
    """DetachedConnections that are opened and used in greenlets, on any number of event loops.

    Threads are few; tasks may be many. So each loop has at most as many in use as the engine's pool would lend,
    `pool_size` and `max_overflow`, and a task waits for one as long as it would wait for the pool, `pool_timeout`.
    """

    def __init__(self, engine: Engine, **options: Any) -> None:
        super().__init__(engine, **options)
        self._in_use: dict[Detached, Place] = {}
        self._slots: dict[asyncio.AbstractEventLoop, Slots] = {}

    def take(self) -> Detached:
        """As in DetachedConnections.

        Raises:
            SQLAlchemyError: also when no connection in use became free in time.
        """
        place = Place(self._of_running_loop())
        try:
            place.acquire()
            detached = super().take()
            self._in_use[detached] = place
        except BaseException:
            place.release()
            raise
        return detached

    def put(self, detached: Detached) -> None:
        try:
            super().put(detached)
        finally:
            self._release(detached)

    def discard(self, detached: Detached) -> None:  # type: ignore[override]
        try:
            super().discard(detached)
        finally:
            self._release(detached)

    def _release(self, detached: Detached) -> None:
        place = self._in_use.pop(detached, None)
        if place is not None:
            place.release()

    def _of_running_loop(self) -> Slots:
        loop = asyncio.get_running_loop()
        slots = self._slots.get(loop)
        if slots is None:
            self._slots = {each: known for each, known in self._slots.items() if not each.is_closed()}
            slots = self._slots[loop] = Slots(self._engine, loop)
        return slots

    def _new_idle(self) -> LoopIdle[Detached]:  # type: ignore[override]
        return LoopIdle(self.discard)

    def _opened(self) -> tuple[HandlerConnection, Any]:
        connection = HandlerConnection(self._engine, unpooled(self._engine), _allow_revalidate=False)
        adapted = connection.connection.dbapi_connection
        driver = self._engine.dialect.get_driver_connection(adapted)  # type: ignore[arg-type]
        return connection, awaited(adapted, driver)


class Slots:
    """The connections that the tasks of one event loop may use at the same time. Used in greenlets.

    Args:
        engine: its pool says how many, and how long a task waits for one.
        loop: the loop.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        pool = engine.pool
        self._loop = loop
        self._most: int | None = None
        if isinstance(pool, QueuePool) and pool.size() and pool._max_overflow >= 0:  # noqa: SLF001 - not public
            self._most = pool.size() + pool._max_overflow  # noqa: SLF001
            self._wait_s = pool.timeout()
        self._free = asyncio.Semaphore(self._most or 1)

    @property
    def are_limited(self) -> bool:
        """Whether the pool has a limit."""
        return self._most is not None

    def release(self) -> None:
        """Let another task have one. From any thread."""
        if running_loop() is self._loop:
            self._free.release()
        else:
            with suppress(RuntimeError):  # closed
                self._loop.call_soon_threadsafe(self._free.release)

    async def acquire(self, place: Place) -> None:
        """Wait for a connection that is not in use.

        Raises:
            sqlalchemy.exc.TimeoutError: none was returned in time.
        """
        try:
            async with asyncio.timeout(self._wait_s):
                place.is_held = await self._free.acquire()
        except TimeoutError as error:
            raise PoolTimeoutError(
                f"all {self._most} connections of the event loop were in use for {self._wait_s:g} s: raise pool_size "
                "or max_overflow of the engine, or let fewer messages run at once"
            ) from error


class Place:
    """The use of one connection. Whatever interrupts `acquire`, `release` gives back what that has taken."""

    __slots__ = ("_slots", "is_held")

    def __init__(self, slots: Slots) -> None:
        self._slots: Final = slots
        self.is_held = False

    def acquire(self) -> None:
        """Wait until the loop may use one more connection.

        Raises:
            sqlalchemy.exc.TimeoutError: none was returned in time.
        """
        if self._slots.are_limited:
            await_only(self._slots.acquire(self))

    def release(self) -> None:
        """Let another task have it. From any thread."""
        is_held, self.is_held = self.is_held, False
        if is_held:
            self._slots.release()


class LoopIdle(Generic[C]):
    """Idle connections for each event loop. Those of a loop are closed when it shuts down, or after it was closed.

    It has the methods of `Idle`; `take` and `put` are about the running loop.

    Args:
        discard: closes a connection, without awaiting.
    """

    def __init__(self, discard: Callable[[C], object]) -> None:
        """Start empty."""
        self._discard = discard
        self._by_loop: dict[asyncio.AbstractEventLoop, tuple[Idle[C], AsyncGenerator[None]]] = {}
        self._generation = generation.number
        _kept.add(self)

    def __len__(self) -> int:
        return sum(len(idle) for idle, _ in list(self._by_loop.values()))

    def take(self) -> C | None:
        return self._of_running_loop().take()

    def put(self, connection: C) -> None:
        self._of_running_loop().put(connection)

    def drain(self) -> Iterator[C]:
        """Remove the connections of all loops."""
        if self._generation == generation.number:
            for idle, _ in list(self._by_loop.values()):
                yield from idle.drain()

    def _of_running_loop(self) -> Idle[C]:
        if self._generation != generation.number:
            _inherited.append(self._by_loop)
            self._by_loop, self._generation = {}, generation.number
        loop = asyncio.get_running_loop()
        known = self._by_loop.get(loop)
        return known[0] if known is not None else self._begin(loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> Idle[C]:
        for each in list(_kept):
            each._forget_closed()  # noqa: SLF001 - of this class
        idle: Idle[C] = Idle()
        watch = _until_shutdown(ref(self), loop)
        self._by_loop[loop] = (idle, watch)
        await_only(anext(watch))
        return idle

    def _forget_closed(self) -> None:
        for loop in list(self._by_loop):
            if loop.is_closed():
                self._forget(loop)

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        known = self._by_loop.pop(loop, None)
        if known is not None and self._generation == generation.number:
            for connection in known[0].drain():
                self._discard(connection)


_kept: Final[WeakSet[LoopIdle[Any]]] = WeakSet()


async def _until_shutdown(idle: ref[LoopIdle[Any]], loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None]:
    """Close the idle connections of a loop when `asyncio.run` ends it: it closes the generators that began on it."""
    try:
        yield
    finally:
        known = idle()
        if known is not None:
            known._forget(loop)  # noqa: SLF001 - of this module
            await asyncio.sleep(0)  # the sockets are closed by the loop, soon


def unpooled(engine: Engine) -> PoolProxiedConnection:
    """A new connection as the engine's pool would make it, and not one of the pool's: it may be another loop's.

    Nor does it wait for the pool, which tasks of different loops cannot do together.
    """
    alone = beside_pool(engine.pool)
    first = _first_of(engine)
    while not first.done:
        if first.lock.acquire(blocking=False):
            try:
                connection = alone.connect()
                first.done = True
                return connection
            finally:
                first.lock.release()
        await_only(asyncio.sleep(_POLL_S))
    return alone.connect()


class _First:
    """The first connection of an engine, from which its dialect learns the server's version."""

    __slots__ = ("done", "lock")

    def __init__(self) -> None:
        self.done = False
        self.lock: Final = free_in_child(threading.Lock())  # never waited for: another loop may have it


_firsts: Final[WeakKeyDictionary[Engine, _First]] = WeakKeyDictionary()


def _first_of(engine: Engine) -> _First:
    return _firsts.setdefault(engine, _First())
