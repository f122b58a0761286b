"""WorkerSummary: what a worker did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from idempotent.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """What a worker did.

    Attributes:
        outcomes: settled deliveries by outcome.
        requeued: deliveries given back: not started, held, or cancelled when the worker stopped, or held for too long.
        abandoned: deliveries whose handlers still ran in the end, or waited for one that did: threads, and tasks that
            refused to be cancelled. The broker delivers them again.
        stale: settlements after the delivery's connection was lost. The broker delivers those messages again.
        unrecorded: completions and releases that the store had not recorded at the end of the drain. Other workers may
            repeat these effects.
    """

    outcomes: Mapping[Outcome, int]
    requeued: int
    abandoned: int
    stale: int
    unrecorded: int = 0

    def __getitem__(self, outcome: Outcome) -> int:
        return self.outcomes.get(outcome, 0)

    @property
    def settled(self) -> int:
        """Settled deliveries of every outcome."""
        return sum(self.outcomes.values())

    def as_extra(self) -> dict[str, int]:
        """All numbers, as the data of a log record."""
        counts = {outcome.value: count for outcome, count in self.outcomes.items()}
        return {
            **counts,
            "requeued": self.requeued,
            "abandoned": self.abandoned,
            "stale": self.stale,
            "unrecorded": self.unrecorded,
        }
