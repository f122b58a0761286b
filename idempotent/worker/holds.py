"""Work: one delivery in a worker. Holds: the unsettled deliveries that wait for a re-check."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from idempotent.consumer import Consumer

if TYPE_CHECKING:
    from idempotent.adapters.base import Delivery

MAX_CHECKS: Final = 5
# The owner of a key is usually done long before its lease ends. Five checks cover a lease of 30 seconds.
_FIRST_CHECK_S: Final = 0.1
_CHECKS_GROW: Final = 4.0


@dataclass(slots=True, eq=False)
class Work:
    """A delivery, its consumer, and how often it was held."""

    delivery: Delivery
    consumer: Consumer
    checks: int = 0

    def wait_s(self, longest_s: float) -> float:
        """Seconds until the next check: short at first, then longer, and at most `longest_s`."""
        return min(longest_s, _FIRST_CHECK_S * math.pow(_CHECKS_GROW, min(self.checks, MAX_CHECKS)))

    @property
    def held_long_enough(self) -> bool:
        """Whether to requeue it for another worker: once per message, where its broker marks redeliveries.

        A requeue counts as a delivery with some brokers, and a message must not die of contention.
        """
        return self.checks >= MAX_CHECKS and not self.delivery.message.redelivered


class Holds:
    """Deliveries that are not settled, each with the time of its next check. Not thread-safe.

    Args:
        limit: how many may wait before the worker should receive no new ones.
    """

    def __init__(self, limit: int) -> None:
        """Hold nothing yet."""
        self._limit = limit
        self._heap: list[tuple[float, int, Work]] = []
        self._ties = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def full(self) -> bool:
        """Whether the worker should receive no new deliveries."""
        return len(self._heap) >= self._limit

    def add(self, work: Work, due: float) -> None:
        """Hold it until `due`, seconds of the worker's clock."""
        work.checks += 1
        heapq.heappush(self._heap, (due, next(self._ties), work))

    def due(self, now: float, limit: int) -> list[Work]:
        """Remove and return at most `limit` that are due."""
        found: list[Work] = []
        while self._heap and len(found) < limit and self._heap[0][0] <= now:
            found.append(heapq.heappop(self._heap)[2])
        return found

    def next_in_s(self, now: float, longest_s: float) -> float:
        """Seconds until the next check, at most `longest_s`."""
        return min(longest_s, max(self._heap[0][0] - now, 0.0)) if self._heap else longest_s

    def clear(self) -> list[Work]:
        """Remove and return all."""
        works = [work for _, _, work in self._heap]
        self._heap.clear()
        return works
