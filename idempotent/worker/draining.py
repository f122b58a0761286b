"""Drain: the end of a worker's handlers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from idempotent.worker.handlers import HandlerPool
from idempotent.worker.message_log import MessageLog
from idempotent.worker.unrecorded import UnrecordedSteps

# How long tasks that are cancelled have to free their claims.
_CANCEL_S: Final = 2.0


class Drain:
    """Waits for what handlers have in hand, and then ends those that can be ended.

    Args:
        pool: starts no more works.
        unrecorded: what the stores have not recorded yet.
        messages: logs what is not finished in time.
        timeout_s: how long to wait; it begins now.
        is_hurried: whether to wait no longer.
        stores_answer: for the log.
    """

    def __init__(
        self,
        pool: HandlerPool,
        unrecorded: UnrecordedSteps,
        messages: MessageLog,
        timeout_s: float,
        *,
        is_hurried: Callable[[], bool],
        stores_answer: Callable[[], bool],
    ) -> None:
        self._pool = pool
        self._unrecorded = unrecorded
        self._log = messages
        self._until = time.monotonic() + timeout_s
        self._is_hurried = is_hurried
        self._stores_answer = stores_answer

    def run(self, take_finished: Callable[[], None]) -> None:
        """Wait until all is finished, or time is up and the tasks are cancelled.

        Args:
            take_finished: takes what is finished from the pool; waits for it, for a moment.
        """
        while self._unfinished():
            take_finished()
        left = self._pool.in_flight.total()
        if not left:
            return
        self._log.drain_timed_out(left, self._pool.running, stores_answer=self._stores_answer())
        self._pool.cancel()  # tasks; a thread cannot be cancelled
        until = time.monotonic() + _CANCEL_S
        while self._pool.has_tasks and time.monotonic() < until:
            take_finished()

    def _unfinished(self) -> bool:
        """Whether handlers run, or the store has not recorded what they did, and there is time."""
        waits = time.monotonic() < self._until and not self._is_hurried()
        return waits and bool(self._pool.is_busy or self._unrecorded)
