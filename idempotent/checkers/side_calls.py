"""Threads beside those of callers: SideThreads make the SideCalls that tasks await."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeAlias, TypeVar

from idempotent.errors import described
from idempotent.forks import free_in_child, generation
from idempotent.logs import EventLog

R = TypeVar("R")
log = EventLog(__name__)
_IDLE_S: Final = 10.0
_CLOSE_S: Final = 10.0


OnCancel: TypeAlias = Callable[[asyncio.CancelledError], object]
"""Given each cancellation of a task that waits on, such as `came.append`: then `raise_first(came)` must follow."""


def raise_first(came: list[asyncio.CancelledError]) -> None:
    """Raise the first of the cancellations that came while a task waited on, if any.

    It is the object that came, and no new one: anyio knows the cancellations of its scopes by their text.
    """
    if came:
        try:
            raise came[0]
        finally:
            came.clear()  # else the error's traceback would keep the error alive


async def ended(running: Coroutine[Any, Any, R], on_cancel: OnCancel | None = None) -> R:
    """Run a coroutine to its end, also if the task is cancelled meanwhile, and return its result."""
    done = Signal()
    future = asyncio.ensure_future(_told(running, done))
    future.add_done_callback(lambda _: done.set())  # of one that was cancelled before it began
    await done.wait_to_its_end(on_cancel)
    return future.result()


async def _told(running: Coroutine[Any, Any, R], done: Signal) -> R:
    try:
        return await running
    finally:
        done.set()  # here, and not when its future is done: that comes a turn of the loop later


class Signal:
    """Tells a task of something that happens in another thread. Made in the loop's thread."""

    __slots__ = ("_future", "_is_set", "loop")

    def __init__(self) -> None:
        self.loop: Final = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None
        self._is_set = False

    def set(self) -> None:
        """Let the task go on. Runs in the loop's thread."""
        self._is_set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Wait. A cancellation of the task ends the wait."""
        if not self._is_set:
            self._future = self.loop.create_future()
            await self._future

    async def wait_to_its_end(self, on_cancel: OnCancel | None = None) -> None:
        """Wait, also if the task is cancelled meanwhile.

        anyio repeats a cancellation at each await until its scope is left. A shielded scope of our own keeps the
        repetitions away, so that each call of `on_cancel` is for another cancellation, and the loop does not spin.
        """
        shield: Any = None
        while not self._is_set:
            self._future = self.loop.create_future()
            try:
                await self._future
            except asyncio.CancelledError as error:
                if on_cancel is not None:
                    on_cancel(error)
                # Looked for and not imported: its scopes exist only where the application has imported it.
                if shield is None and (anyio := sys.modules.get("anyio")) is not None:
                    shield = anyio.CancelScope(shield=True)
                    shield.__enter__()
        if shield is not None:
            # No `with`: it would leave the scope of a coroutine that is closed, where that is an error.
            shield.__exit__(None, None, None)


class SideCall(Generic[R]):
    """A call, made by `run` in another thread. Made in the loop's thread.

    Args:
        function: what to call.
        arguments: its arguments.
        unused: called in the other thread with an answer that the task does not wait for any more.
    """

    def __init__(
        self,
        function: Callable[..., R],
        arguments: tuple[Any, ...],
        unused: Callable[[R], object] | None = None,
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._unused = unused
        self._done = Signal()
        self._returned: R | None = None
        self._error: BaseException | None = None
        self._open = [True]

    def run(self) -> None:
        """Make the call, and tell the task."""
        try:
            self._returned = self._function(*self._arguments)
        except BaseException as error:
            self._error = error
        reached = self._end()
        if reached:
            try:
                self._done.loop.call_soon_threadsafe(self._done.set)
            except RuntimeError:  # the loop is closed
                reached = False
        if not reached and self._error is None and self._unused is not None:
            self._unused(self._returned)  # type: ignore[arg-type]  # the call has returned

    async def answer(self) -> R:
        """Wait for the answer. A cancellation of the task ends the wait. An exception of the call is raised."""
        await self._done.wait()
        return self.result()

    async def end(self, on_cancel: OnCancel | None = None) -> None:
        """Wait until it has returned or raised, also if the task is cancelled meanwhile."""
        await self._done.wait_to_its_end(on_cancel)

    def result(self) -> R:
        """What it has returned; what it has raised is raised."""
        if self._error is not None:
            raise self._error
        return self._returned  # type: ignore[return-value]  # the call has returned

    def give_up(self) -> R | None:
        """Wait no longer. Returns the answer if it is there already; a later one is `unused`."""
        return None if self._end() else self._returned

    def _end(self) -> bool:
        """Whether this is the first of the two: the answer, or the end of the wait."""
        try:
            self._open.pop()  # atomic
        except IndexError:
            return False
        return True


class SideThreads:
    """Runs calls in the order in which they came. A thread ends when it was idle for some seconds, and at close.

    Args:
        name: of the threads.
        most: the most threads.
    """

    def __init__(self, name: str, *, most: int) -> None:
        self._name = name
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._generation = generation.number
        self._calls: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]] | None] = SimpleQueue()
        self._lock = free_in_child(threading.Lock())
        self._threads: set[threading.Thread] = set()
        self._idle = 0

    def run(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in a thread. What it raises is logged.

        Raises:
            RuntimeError: the system starts no more threads, and none of these runs.
        """
        if self._generation != generation.number:
            self._begin()  # after fork() the threads are gone
        with self._lock:
            if self._idle <= self._calls.qsize() and len(self._threads) < self._most:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    if not self._threads:
                        raise
                else:
                    self._threads.add(thread)
            self._calls.put((function, arguments))

    def close(self) -> None:
        """End the threads when they have made the calls that wait. Later calls start new ones."""
        with self._lock:
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
            for _ in self._threads:
                self._calls.put(None)
        until = time.monotonic() + _CLOSE_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            try:
                call = self._calls.get(timeout=_IDLE_S)
            except Empty:
                call = None
            with self._lock:
                self._idle -= 1
                if call is None and (self._calls.empty() or len(self._threads) > 1):
                    self._threads.discard(threading.current_thread())
                    return
            if call is not None:
                _run(*call)
            del call  # what it refers to must not live until the next one


def _run(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    try:
        function(*arguments)
    except Exception as error:
        log.exception("side_call_failed", extra={"error": described(error)})
