"""Ledger: runs and their claims in one store.

Three layers, each its rules over a few atomic hooks that a store implements: RunLifecycle (runs), KeyClaiming (mode
dedup), KeyHolding (modes replay and effect). `RunClaims` decides by them what becomes of a key.
"""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Self

from idempotent.adapters.spark.ledger.claims import ClaimState
from idempotent.adapters.spark.ledger.holding import KeyHolding
from idempotent.adapters.spark.ledger.runs import RunRef


class Ledger(KeyHolding):
    """A store of runs and claims. `open_ledger` makes one."""

    @abstractmethod
    def counts(self, ref: RunRef) -> dict[ClaimState, int]:
        """How many claims a run owns now, by state. Redis looks at every claim of the store for it."""

    @abstractmethod
    def gc(self, limit: int = 10_000) -> int:
        """Forget what nobody needs, in bounded batches; how many claims were deleted.

        - Claims of ABORTED runs, but DONE ones only after the retention: their effect has happened.
        - Claims of COMMITTED runs, a retention after the commit.
        - Runs of which nothing is left, a retention after their end.
        - OPEN runs that began a retention ago and whose lease has ended are aborted: they cannot be prepared any more.

        Never claims of OPEN or PREPARED runs. Redis forgets by itself: nothing happens.

        Args:
            limit: claims at most.
        """

    @abstractmethod
    def close(self) -> None:
        """Close connections. The next call opens new ones."""

    def __enter__(self) -> Self:
        """The ledger itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()
