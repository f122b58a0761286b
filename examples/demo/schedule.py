"""The settings of a run, and what its seed decides: the order of deliveries, and when the consumer is killed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from examples.demo.flights import FLIGHTS

_BATCH: Final = 500
REORDERED_WITHIN: Final = 1_000
"""A message is delivered at most this many places late."""
RESENT_WITHIN: Final = 20_000
"""A copy is delivered at most this many places after the original."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the command line; `duplicates` is a share, 0 to 1."""

    flights: int = FLIGHTS
    kills: int = 5
    duplicates: float = 0.05
    seed: int = 2013

    @property
    def batch_size(self) -> int:
        """Small enough that a small run has many batches for its kills to meet."""
        return max(1, min(_BATCH, self.flights // 20))


DEFAULTS: Final = Settings()


def delivery_order(count: int, *, duplicates: float, seed: int) -> list[int]:
    """The numbers 0 to `count` - 1, reordered, a share of them twice."""
    rng = random.Random(f"order {seed}")
    places = [(number + rng.random() * REORDERED_WITHIN, number) for number in range(count)]
    places += [
        (number + rng.random() * RESENT_WITHIN, number)
        for number in rng.sample(range(count), round(count * duplicates))
    ]
    return [number for _, number in sorted(places)]


def kill_points(deliveries: int, *, kills: int, seed: int) -> list[int]:
    """After how many deliveries the consumer is killed: at random, once in each of `kills` equal stretches."""
    rng = random.Random(f"kills {seed}")
    stretch = deliveries / max(kills, 1)
    return [int(stretch * (number + rng.uniform(0.1, 0.9))) for number in range(kills)]
