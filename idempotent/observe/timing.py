"""Durations: how long claims, handlers, completions and settlements took, counted in buckets."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, TypeAlias

from idempotent.forks import free_in_child
from idempotent.observe.events import Stage, Timed

BUCKETS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""The upper ends of the buckets, in seconds: a claim in memory takes some 10 us, a handler may take a minute."""

# Their places behind the sum, which is at 0: Python counts up there faster than at -1, 0.2 us for a message.
_AFTER_SUM: Final = (-1.0, *BUCKETS_S)

Histogram: TypeAlias = list[float]
"""How many durations fell into each bucket of `BUCKETS_S`, how many were longer, and the sum of all in seconds."""


class Durations:
    """A histogram for each consumer and stage. Thread-safe.

    A group of messages that are claimed, run by a batch handler or completed together counts once for each message:
    each waits for so long.
    """

    def __init__(self) -> None:
        self._lock = free_in_child(threading.Lock())
        self._histograms: dict[str, dict[Stage, Histogram]] = {}

    def declared(self, consumer: str) -> None:
        """Begin at 0, as the counters do."""
        with self._lock:
            self._histograms.setdefault(consumer, _empty())

    def timed(self, consumer: str, times: Sequence[Timed]) -> None:
        """Add each duration to its histogram, as often as there are messages."""
        with self._lock:
            histograms = self._histograms.get(consumer)
            if histograms is None:
                histograms = self._histograms[consumer] = _empty()
            for stage, took_s, count in times:
                histogram = histograms[stage]
                histogram[bisect_left(_AFTER_SUM, took_s)] += count
                histogram[0] += took_s * count

    def snapshot(self) -> dict[str, dict[Stage, Histogram]]:
        """A copy of all histograms, by consumer."""
        with self._lock:
            return {
                consumer: {stage: [*counts, sum_s] for stage, (sum_s, *counts) in histograms.items()}
                for consumer, histograms in self._histograms.items()
            }


def _empty() -> dict[Stage, Histogram]:
    return {stage: [0] * (len(BUCKETS_S) + 2) for stage in Stage}
