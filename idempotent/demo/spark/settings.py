"""The settings of one run of the Spark demo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MONTHS: Final = 12
SHARE: Final = 20_000


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The options of the command line.

    Attributes:
        flights: the number of flights, spread evenly over these months; all, if the months have fewer.
        months: the number of months of the year; each is one run.
        kills: the number of times the driver is killed.
        duplicates: the share of rows that are delivered again, 0 to 1.
        seed: decides order, copies and kills.
    """

    flights: int = SHARE
    months: int = 6
    kills: int = 3
    duplicates: float = 0.05
    seed: int = 2013

    @property
    def logical_dates(self) -> list[str]:
        """The dates of the runs, in order."""
        return [f"2013-{month:02}" for month in range(1, self.months + 1)]
