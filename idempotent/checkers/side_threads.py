"""SideThreads: a few daemon threads, started on demand, for calls that must not block an event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from idempotent.errors import described
from idempotent.forks import free_in_child, generation
from idempotent.logs import EventLog

log = EventLog(__name__)

_IDLE_S: Final = 10.0
_CLOSE_S: Final = 10.0


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
