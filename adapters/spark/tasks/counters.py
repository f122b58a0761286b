"""Counters: rows by verdict, which an accumulator brings back to the driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idempotent.adapters.spark.ledger.run_claims import Verdict


class Sums:
    """How Spark adds up an accumulator: numbers by run and verdict. In the place of an AccumulatorParam."""

    def zero(self, _value: object) -> dict[tuple[int, str], int]:
        """Nothing counted."""
        return {}

    def addInPlace(  # noqa: N802 - Spark's name
        self, one: dict[tuple[int, str], int], other: Mapping[tuple[int, str], int]
    ) -> dict[tuple[int, str], int]:
        """The sums, in `one`."""
        for name, count in other.items():
            one[name] = one.get(name, 0) + count
        return one


class Counters:
    """Rows by verdict. A row counts once in each evaluation, and not in a task that failed.

    Args:
        accumulator: of the SparkContext, for all its runs.
        token: of the run.
        verdicts: to count.
    """

    def __init__(self, accumulator: Any, token: int, verdicts: Iterable[Verdict]) -> None:
        """Start at 0."""
        self._accumulator = accumulator
        self._names = {verdict.name: (token, verdict.name) for verdict in verdicts}

    def add(self, verdicts: Mapping[Verdict, int]) -> None:
        """Count rows, on an executor."""
        self._accumulator.add({self._names[verdict.name]: count for verdict, count in verdicts.items()})

    @property
    def values(self) -> dict[str, int]:
        """Rows by verdict's name in lower case, on the driver."""
        sums = self._accumulator.value
        return {name.lower(): sums.get(entry, 0) for name, entry in self._names.items()}

    def free(self) -> None:
        """Forget the run's numbers, on the driver."""
        for entry in self._names.values():
            self._accumulator.value.pop(entry, None)
