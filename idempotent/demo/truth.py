"""Compare the bookings with the truth: every row, not only the sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from idempotent.demo.flights import Flight


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over rows.

    Attributes:
        flights: rows.
        distance: miles.
        arr_delay: minutes, over the flights that arrived.
    """

    flights: int
    distance: int
    arr_delay: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Where two multisets of rows differ.

    Attributes:
        truth: sums over the data set.
        booked: sums over the table.
        lost: flights of the data set that are not booked, or not with these values.
        repeated: bookings of a flight beyond its first.
        strange: bookings that are not in the data set: an unknown flight, or other values.
        unexplained: repeats beyond those that `explained` allows.
        examples: some of the flights that differ.
    """

    truth: Totals
    booked: Totals
    lost: int
    repeated: int
    strange: int
    unexplained: int
    examples: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Equal to the last row."""
        return not (self.lost or self.repeated or self.strange)

    @property
    def as_promised(self) -> bool:
        """Nothing lost, nothing strange, and no repeat that is not explained."""
        return not (self.lost or self.strange or self.unexplained)


def compare(
    truth: Iterable[Flight], booked: Iterable[Flight], *, explained: Mapping[str, int] | None = None
) -> Comparison:
    """Compare bookings with the data set.

    Args:
        truth: the rows that should be booked, each once.
        booked: the rows that are.
        explained: for each flight, how many repeats the kills can explain; 0 by default.
    """
    expected, found = Counter(truth), Counter(booked)
    lost, surplus = expected - found, found - expected
    repeated = Counter({row: count for row, count in surplus.items() if row in expected})
    strange = surplus - repeated
    allowed = explained or {}
    unexplained = {row: count for row, count in repeated.items() if count > allowed.get(row.flight, 0)}
    return Comparison(
        truth=_totals(expected),
        booked=_totals(found),
        lost=lost.total(),
        repeated=repeated.total(),
        strange=strange.total(),
        unexplained=sum(count - allowed.get(row.flight, 0) for row, count in unexplained.items()),
        examples=[row.flight for rows in (lost, strange, unexplained or repeated) for row in list(rows)[:2]],
    )


def _totals(rows: Counter[Flight]) -> Totals:
    return Totals(
        flights=rows.total(),
        distance=sum(row.distance * count for row, count in rows.items()),
        arr_delay=sum((row.arr_delay or 0) * count for row, count in rows.items()),
    )
