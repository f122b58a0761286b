"""Drain: the end of a worker's handlers, and of the steps that the stores have not recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.errors import StoreError
from idempotent.logs import EventLog
from idempotent.worker.handlers import HandlerPool
from idempotent.worker.message_log import MessageLog

# How long tasks that are cancelled have to free their claims.
_CANCEL_S: Final = 2.0


log = EventLog(__name__)


class UnrecordedSteps:
    """Completions and releases that the stores did not record. The checkers retry them in the background.

    Args:
        checkers: those of the worker's consumers.
    """

    def __init__(self, checkers: Iterable[AbstractIdempotentChecker]) -> None:
        self._protocols = [checker.protocol for checker in checkers]

    def __len__(self) -> int:
        return sum(protocol.unrecorded for protocol in self._protocols)

    def excuse(self) -> None:
        """Let handlers that the worker leaves running count no attempt: they have not failed, it has ended."""
        for protocol in self._protocols:
            try:
                protocol.excuse()
            except StoreError as error:
                log.warning("attempts_not_taken_back", extra={"error": str(error)})

    def report(self) -> None:
        """Log those that are left: an error for effects that may be repeated, a warning for keys that are not free."""
        releases = sum(protocol.unrecorded_releases for protocol in self._protocols)
        completions = len(self) - releases
        if completions:
            log.error(
                "completions_not_recorded",
                extra={
                    "keys": completions,
                    "hint": "the store did not answer; when their leases end, other workers may repeat these effects",
                },
            )
        if releases:
            log.warning(
                "releases_not_recorded",
                extra={
                    "keys": releases,
                    "hint": "the store did not answer; these handlers had no effect, and run again when the leases end",
                },
            )


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
