"""Counters: rows by verdict, which accumulators bring back to the driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idempotent.adapters.spark.ledger.run_claims import Verdict


class Counters:
    """Rows by verdict. A row counts once in each evaluation, and not in a task that failed.

    Args:
        context: the SparkContext; Spark Connect has none.
    """

    def __init__(self, context: Any, verdicts: Iterable[Verdict]) -> None:
        """Start at 0."""
        self._accumulators = {verdict.name: context.accumulator(0) for verdict in verdicts}

    def add(self, verdicts: Mapping[Verdict, int]) -> None:
        """Count rows, on an executor."""
        for verdict, count in verdicts.items():
            self._accumulators[verdict.name].add(count)

    @property
    def values(self) -> dict[str, int]:
        """Rows by verdict's name in lower case, on the driver."""
        return {name.lower(): accumulator.value for name, accumulator in self._accumulators.items()}
