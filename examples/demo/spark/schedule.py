"""What the command line and the seed decide: the months of the runs, and when the driver is killed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, NamedTuple

MONTHS: Final = 12
SHARE: Final = 20_000
STEPS: Final = ("begun", "claimed", "prepared", "copied", "booked", "committed")
"""The steps of a run, in order."""
_LONGEST_S: Final = dict(zip(STEPS, (2.0, 0.02, 0.02, 0.2, 0.02, 0.2), strict=True))


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The options of the command line.

    The flights are spread evenly over the months, each of which is one run; all, if the months have fewer.
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


class Kill(NamedTuple):
    """A SIGKILL, `delay_s` after this step of this run; the driver may have gone on by then."""

    date: str
    step: str
    delay_s: float


def kills_of(settings: SparkSettings) -> list[Kill]:
    """The kills, spread over the runs; the steps take turns, beginning with a random one."""
    rng = random.Random(f"kills {settings.seed}")
    dates = settings.logical_dates
    first = rng.randrange(len(STEPS))
    kills = []
    for number in range(settings.kills):
        step = STEPS[(first + number) % len(STEPS)]
        date = dates[number * len(dates) // settings.kills]
        kills.append(Kill(date, step, rng.uniform(0, _LONGEST_S[step])))
    # Within a run the kills follow the order of the steps.
    return sorted(kills, key=lambda kill: (kill.date, STEPS.index(kill.step)))
