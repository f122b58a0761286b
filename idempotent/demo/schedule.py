"""The order of deliveries, and when the consumer is killed; the same for the same seed."""

from __future__ import annotations

import random
from typing import Final

REORDERED_WITHIN: Final = 1_000
"""A message is delivered at most this many places late."""
RESENT_WITHIN: Final = 20_000
"""A copy is delivered at most this many places after the original."""


def delivery_order(count: int, *, duplicates: float, seed: int) -> list[int]:
    """The numbers 0 to count - 1, reordered, some of them twice.

    Args:
        count: how many messages.
        duplicates: the share of them that the producer sends twice, 0 to 1.
        seed: the same seed gives the same order.
    """
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
