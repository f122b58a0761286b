"""When the driver is killed: in which run, after which step, and how long after it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from idempotent.demo.spark.settings import SparkSettings

STEPS: Final = ("begun", "claimed", "prepared", "moved", "booked", "committed")
"""The steps of a run, in order."""
_LONGEST_S: Final = {
    "begun": 2.0,
    "claimed": 0.02,
    "prepared": 0.02,
    "moved": 0.2,
    "booked": 0.02,
    "committed": 0.2,
}


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL.

    Attributes:
        date: of the run.
        step: the last step reported before the kill.
        delay_s: seconds after that report; the driver may have gone on by then.
    """

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
