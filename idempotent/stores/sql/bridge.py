"""Bridge: runs synchronous steps over an asyncio driver in greenlets, on the caller's event loop or a private one."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from sqlalchemy.util import concurrency, greenlet_spawn

from idempotent.errors import StoreUnavailableError
from idempotent.forks import free_in_child, generation

T = TypeVar("T")

_refusal: Final = threading.local()
# Loops of a parent process, kept so that they are never finalized: that would wake the parent's loops.
_inherited: Final[list[object]] = []


def in_greenlet() -> bool:
    """Whether the caller runs in `greenlet_spawn`, so that it may await."""
    return concurrency.in_greenlet()


def may_await() -> bool:
    """Whether the caller runs in a greenlet, and outside of `nothing_awaited`."""
    return in_greenlet() and not _is_refused()


@contextmanager
def nothing_awaited() -> Iterator[None]:
    """Let every step that has to await fail: its coroutine is being closed, and must not be suspended again."""
    before = _is_refused()
    _refusal.on = True
    try:
        yield
    finally:
        _refusal.on = before


def _is_refused() -> bool:
    return getattr(_refusal, "on", False)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Bridge:
    """Runs functions that await through SQLAlchemy's greenlets.

    A function that is called in a greenlet runs there. One that is called by a plain thread, such as a command or the
    collector of expired keys, runs on an event loop of the bridge's own, in a daemon thread that is started on demand.
    """

    def __init__(self) -> None:
        self._starting: Final = free_in_child(threading.Lock())
        self._private: _PrivateLoop | None = None
        self._generation = generation.number

    def run(self, function: Callable[..., T], *arguments: Any, within_s: float | None = None) -> T:
        """Call the function in a greenlet, and return its answer. Exceptions pass through.

        Args:
            function: awaits what it needs.
            arguments: passed to it.
            within_s: how long a plain thread waits for the answer, in seconds; None: any time.

        Raises:
            StoreUnavailableError: nothing may be awaited here, or no answer came in time.
        """
        if _is_refused():
            raise StoreUnavailableError("the store cannot be asked while a coroutine is being closed")
        if in_greenlet():
            return function(*arguments)
        return self._started().run(function, arguments, within_s)

    def owns(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether it is the bridge's own loop."""
        private = self._private
        return private is not None and private.loop is loop

    def close(self) -> None:
        """End the private loop, and wait for its end. The next call starts another one. Idempotent."""
        with self._starting:
            private, self._private = self._private, None
        if private is not None and self._generation == generation.number:
            private.close()

    def _started(self) -> _PrivateLoop:
        private = self._private
        if private is not None and self._generation == generation.number:
            return private
        with self._starting:
            if self._generation != generation.number:
                _inherited.append(self._private)
                self._private, self._generation = None, generation.number
            if self._private is None:
                self._private = _PrivateLoop()
            return self._private


class _PrivateLoop:
    """An event loop in a daemon thread, ended at the latest when the process exits."""

    def __init__(self) -> None:
        self.loop: Final = asyncio.new_event_loop()
        thread = threading.Thread(target=_serve, args=(self.loop,), name="idempotent-sql", daemon=True)
        thread.start()
        self.close: Final = weakref.finalize(self, _end, self.loop, thread)

    def run(self, function: Callable[..., T], arguments: tuple[Any, ...], within_s: float | None) -> T:
        running = asyncio.run_coroutine_threadsafe(greenlet_spawn(function, *arguments), self.loop)
        try:
            wait((running,), within_s)
            if running.done():
                return running.result()
            raise StoreUnavailableError(f"the store did not answer within {within_s:g} seconds")
        finally:
            running.cancel()  # unless it is done: it is late, or this thread was interrupted


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if thread.is_alive():
        loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join()
