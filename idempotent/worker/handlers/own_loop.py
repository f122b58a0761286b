"""OwnLoop: an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context
from typing import Final

from idempotent.worker.handlers.tasks import LoopPlace


class OwnLoop:
    """An event loop, made by asyncio's policy, in a thread.

    Args:
        on_exit: called in the loop's thread with a SystemExit or KeyboardInterrupt of a task that nothing awaits;
            asyncio lets these two out of the loop, which goes on.
    """

    def __init__(self, on_exit: Callable[[BaseException], None]) -> None:
        """Start the thread, and return when it has its loop."""
        self._on_exit = on_exit
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_loop = threading.Event()
        self._closing = False
        # A daemon: a handler that blocks the loop for ever must not keep the process from ending.
        self._thread: Final = threading.Thread(target=self._run, name="idempotent-loop", daemon=True)
        self._thread.start()
        self._has_loop.wait()

    @property
    def place(self) -> LoopPlace:
        """Where its tasks run, without any context variables."""
        assert self._loop is not None
        assert self._thread.ident is not None
        return LoopPlace(self._loop, self._thread.ident, Context())

    def close(self, timeout_s: float) -> None:
        """Cancel what handlers left running, and close the loop. Waits for at most so many seconds. Idempotent."""
        if self._closing:
            return  # a second stop would end the run of the loop in which the last tasks end
        self._closing = True
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                self._has_loop.set()
                while not self._closing:
                    self._go_on(self._loop)
        except (SystemExit, KeyboardInterrupt) as error:  # of a task that was cancelled in the end
            self._on_exit(error)

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            self._on_exit(error)
