"""When the driver is killed: in which run, after which of its steps, and how long after it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from idempotent.demo.spark.settings import SparkSettings

STEPS: Final = ("begun", "claimed", "prepared", "moved", "booked", "committed")
"""Of a run, in their order."""
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
        step: after which it comes.
        delay_s: seconds after it; the driver may be somewhere else by then.
    """

    date: str
    step: str
    delay_s: float


def kills_of(settings: SparkSettings) -> list[Kill]:
    """At random, spread over the runs; the steps take turns, from a random one on."""
    rng = random.Random(f"kills {settings.seed}")
    dates = settings.logical_dates
    first = rng.randrange(len(STEPS))
    kills = []
    for number in range(settings.kills):
        step = STEPS[(first + number) % len(STEPS)]
        date = dates[number * len(dates) // settings.kills]
        kills.append(Kill(date, step, rng.uniform(0, _LONGEST_S[step])))
    # In one run an earlier step cannot be waited for after a later one.
    return sorted(kills, key=lambda kill: (kill.date, STEPS.index(kill.step)))
