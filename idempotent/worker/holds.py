"""InFlightDelivery: one delivery in a worker. Holds: the unsettled deliveries that wait for a re-check."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from idempotent.consumer import AnyConsumer
from idempotent.processing.calling import RETURNED

if TYPE_CHECKING:
    from idempotent.adapters.base import Delivery

MAX_CHECKS: Final = 5
# The owner of a key is usually done long before its lease ends. Five checks cover a lease of 30 seconds.
_FIRST_CHECK_S: Final = 0.1
_CHECKS_GROW: Final = 4.0


@dataclass(slots=True, eq=False)
class InFlightDelivery:
    """A delivery, its consumer, and how often it was held."""

    delivery: Delivery
    consumer: AnyConsumer
    since: float = field(default_factory=time.monotonic)
    """When it was received, by the worker's clock."""
    checks: int = 0
    complaints: int = 0
    """How often the log complained of its wait."""
    warnings: int = 0
    """How often the log has warned that it takes long, or would have, had it looked in time."""

    def wait_s(self, longest_s: float) -> float:
        """Seconds until the next check: short at first, then longer, and at most `longest_s`."""
        return min(longest_s, _FIRST_CHECK_S * math.pow(_CHECKS_GROW, min(self.checks, MAX_CHECKS)))

    @property
    def key(self) -> object:
        """Its key as a text, for logs; None: it has none."""
        return self.consumer.binding.about(self.delivery.message)["key"]

    @property
    def began(self) -> float | None:
        """When its handler began, by the worker's clock. None: it has not; RETURNED: it has ended, the message not."""
        began = self.consumer.binding.calls.began
        return None if began is None else began.get(id(self.delivery.message))

    def running_s(self, now: float) -> float | None:
        """For how many seconds its handler has run at `now`; None: it has not begun, or has ended."""
        began = self.began
        return None if began is None or began == RETURNED else max(now - began, 0.0)

    @property
    def held_long_enough(self) -> bool:
        """Whether to requeue it for another worker: once per message, where its broker marks redeliveries.

        A requeue counts as a delivery with some brokers, and a message must not die of contention.
        """
        return self.checks >= MAX_CHECKS and not self.delivery.message.redelivered


class Holds:
    """Deliveries that are not settled, each with the time of its next check. Not thread-safe."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._heap: list[tuple[float, int, InFlightDelivery]] = []
        self._ties = itertools.count()
        self.of: Counter[AnyConsumer] = Counter()
        """How many deliveries of a consumer are held."""

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, work: InFlightDelivery, due: float) -> None:
        """Hold it until `due`, seconds of the worker's clock."""
        work.checks += 1
        self._push(work, due)

    def add_paused(self, work: InFlightDelivery) -> None:
        """Hold it, without a check, until the deliveries of its consumer are taken, which is paused now."""
        self._push(work, math.inf)

    def take(self, consumer: AnyConsumer) -> list[InFlightDelivery]:
        """Remove and return those of a consumer."""
        taken = [work for _, _, work in self._heap if work.consumer is consumer]
        self._heap = [entry for entry in self._heap if entry[2].consumer is not consumer]
        heapq.heapify(self._heap)
        del self.of[consumer]
        return taken

    def _push(self, work: InFlightDelivery, due: float) -> None:
        self.of[work.consumer] += 1
        heapq.heappush(self._heap, (due, next(self._ties), work))

    def due(self, now: float) -> list[InFlightDelivery]:
        """Remove and return those that are due."""
        found: list[InFlightDelivery] = []
        while self._heap and self._heap[0][0] <= now:
            found.append(heapq.heappop(self._heap)[2])
            self.of[found[-1].consumer] -= 1
        return found

    def next_in_s(self, now: float, longest_s: float) -> float:
        """Seconds until the next check, at most `longest_s`."""
        return min(longest_s, max(self._heap[0][0] - now, 0.0)) if self._heap else longest_s

    def clear(self) -> list[InFlightDelivery]:
        """Remove and return all."""
        works = [work for _, _, work in self._heap]
        self._heap.clear()
        self.of.clear()
        return works
