"""UnrecordedSteps: what a worker's stores have not recorded yet."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from idempotent.checkers.base import AbstractIdempotentChecker

log = logging.getLogger(__name__)


class UnrecordedSteps:
    """Completions and releases that the stores did not record. The checkers retry them in the background.

    Args:
        checkers: those of the worker's consumers.
    """

    def __init__(self, checkers: Iterable[AbstractIdempotentChecker]) -> None:
        self._desks = [checker.desk for checker in checkers]

    def __len__(self) -> int:
        return sum(desk.unrecorded for desk in self._desks)

    def report(self) -> None:
        """Log an error if there are any."""
        if self:
            log.error(
                "completions_not_recorded",
                extra={
                    "keys": len(self),
                    "hint": "the store did not answer; when their leases end, other workers may repeat these effects",
                },
            )
