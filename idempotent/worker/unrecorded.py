"""UnrecordedSteps: what a worker's stores have not recorded yet, and what it leaves unfinished."""

from __future__ import annotations

from collections.abc import Iterable

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.errors import StoreError
from idempotent.logs import EventLog

log = EventLog(__name__)


class UnrecordedSteps:
    """Completions and releases that the stores did not record. The checkers retry them in the background.

    Args:
        checkers: those of the worker's consumers.
    """

    def __init__(self, checkers: Iterable[AbstractIdempotentChecker]) -> None:
        self._desks = [checker.desk for checker in checkers]

    def __len__(self) -> int:
        return sum(desk.unrecorded for desk in self._desks)

    def excuse(self) -> None:
        """Let handlers that the worker leaves running count no attempt: they have not failed, it has ended."""
        for desk in self._desks:
            try:
                desk.excuse()
            except StoreError as error:
                log.warning("attempts_not_taken_back", extra={"error": str(error)})

    def report(self) -> None:
        """Log those that are left: an error for effects that may be repeated, a warning for keys that are not free."""
        releases = sum(desk.unrecorded_releases for desk in self._desks)
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
