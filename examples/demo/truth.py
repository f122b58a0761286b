"""Compare the bookings with the truth: every row, not only the sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from examples.demo.flights import Flight
from examples.demo.stage.databases import RunTable


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over rows: their number, miles, and minutes of the flights that arrived."""

    flights: int
    distance: int
    arr_delay: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Where two multisets of rows differ.

    Attributes:
        lost: flights of the data set that are not booked, or not with these values.
        repeated: bookings of a flight beyond its first.
        strange: bookings that are not in the data set: an unknown flight, or other values.
        unexplained: repeats beyond those that `explained` allows.
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

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`, without the truth, which other comparisons share."""
        values = asdict(self)
        del values["truth"]
        return {**values, "equal": self.equal}


def compare(
    truth: Iterable[Flight], booked: Iterable[Flight], *, explained: Mapping[str, int] | None = None
) -> Comparison:
    """Compare bookings with the rows that should be booked, each once.

    `explained` has for each flight how many repeats the kills can explain; by default none.
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


def flights_in(bookings: RunTable) -> Iterator[Flight]:
    """Every row of a table of bookings."""
    return map(Flight._make, bookings.rows(*Flight._fields))


def _totals(rows: Counter[Flight]) -> Totals:
    return Totals(
        flights=rows.total(),
        distance=sum(row.distance * count for row, count in rows.items()),
        arr_delay=sum((row.arr_delay or 0) * count for row, count in rows.items()),
    )
