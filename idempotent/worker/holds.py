"""Work: one delivery on its way through a worker. Holds: those that wait, unsettled, for another look."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from idempotent.consumer import Consumer

if TYPE_CHECKING:
    from idempotent.adapters.base import Delivery

MOST_LOOKS: Final = 5
# The owner of a key is mostly done long before its lease ends. Five looks cover a lease of 30 seconds.
_FIRST_LOOK_S: Final = 0.1
_LOOKS_GROW: Final = 4.0


@dataclass(slots=True, eq=False)
class Work:
    """A delivery, whose it is, and how often its key was found to be somebody else's."""

    delivery: Delivery
    consumer: Consumer
    looks: int = 0

    def wait_s(self, longest_s: float) -> float:
        """Seconds until the next look: soon at first, then less often, and at most `longest_s`."""
        return min(longest_s, _FIRST_LOOK_S * math.pow(_LOOKS_GROW, min(self.looks, MOST_LOOKS)))

    @property
    def held_long_enough(self) -> bool:
        """Whether somebody else should have it. Once per message, as far as its broker marks redeliveries.

        A requeue counts as a delivery with some brokers, and a message must not die of contention.
        """
        return self.looks >= MOST_LOOKS and not self.delivery.message.redelivered


class Holds:
    """Deliveries that are not settled, each with the time of its next look. Not thread-safe.

    Args:
        most: how many may wait before the worker should take no new ones.
    """

    def __init__(self, most: int) -> None:
        """Empty."""
        self._most = most
        self._heap: list[tuple[float, int, Work]] = []
        self._ties = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def full(self) -> bool:
        """Whether the worker should take no new deliveries."""
        return len(self._heap) >= self._most

    def add(self, work: Work, due: float) -> None:
        """Keep it until `due`, seconds of the worker's clock."""
        work.looks += 1
        heapq.heappush(self._heap, (due, next(self._ties), work))

    def due(self, now: float, limit: int) -> list[Work]:
        """At most `limit` whose time has come; they are held no longer."""
        found: list[Work] = []
        while self._heap and len(found) < limit and self._heap[0][0] <= now:
            found.append(heapq.heappop(self._heap)[2])
        return found

    def next_in_s(self, now: float, longest_s: float) -> float:
        """Seconds until the next look, at most `longest_s`."""
        return min(longest_s, max(self._heap[0][0] - now, 0.0)) if self._heap else longest_s

    def clear(self) -> list[Work]:
        """All of them; none is held any longer."""
        works = [work for _, _, work in self._heap]
        self._heap.clear()
        return works
