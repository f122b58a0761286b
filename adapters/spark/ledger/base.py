"""Ledger: runs and their claims in one store.

Layers, each with rules over a few atomic hooks that a store implements: RunLifecycle and RunBeginning (runs),
KeyClaiming (mode dedup), KeyHolding (modes replay and effect). `RunClaims` builds verdicts on them.
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
        """The number of claims that a run owns now, by state. Redis reads every claim of the store to count them."""

    @abstractmethod
    def gc(self, limit: int = 10_000) -> int:
        """Delete claims and runs that are no longer needed, in bounded batches; the number of claims deleted.

        - Claims of ABORTED runs; those that are DONE only after the retention, because their effect has happened.
        - Claims of COMMITTED runs, a retention after the commit.
        - Runs without claims, a retention after their end.
        - OPEN runs that began a retention ago and whose lease has ended are aborted: they can no longer be prepared.

        Claims of OPEN and PREPARED runs stay. In Redis keys expire, and this does nothing.

        Args:
            limit: the most claims to delete.
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
