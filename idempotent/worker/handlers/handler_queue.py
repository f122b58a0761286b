"""HandlerQueue: the works that wait for a handler, and which of them is next. Done: works that were processed."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from idempotent.consumer import AnyConsumer
from idempotent.outcomes import Result
from idempotent.worker.holds import InFlightDelivery


@dataclass(frozen=True, slots=True)
class Done:
    """Works that were processed together.

    Attributes:
        works: of one consumer; none: something that a handler left running raised `crash`.
        results: aligned with the works; none if there is a crash.
        crash: the error that ended them, and ends the worker.
    """

    works: Sequence[InFlightDelivery]
    results: Sequence[Result]
    crash: BaseException | None = None


class HandlerQueue:
    """Works that wait, by consumer. Not thread-safe: the caller holds a lock.

    `take` gives the works that have waited longest, up to `batch_size` of one consumer: single messages under light
    load, full batches under heavy load. Nothing waits for a batch to fill. Consumers take turns, and one with a
    `concurrency` of its own never has more batches running than that.

    Args:
        batch_size: the most works in one batch.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._waiting: dict[AnyConsumer, deque[InFlightDelivery]] = {}
        self._running: Counter[AnyConsumer] = Counter()

    def __bool__(self) -> bool:
        """Whether works wait, also those that may not run yet."""
        return bool(self._waiting)

    def add(self, works: Sequence[InFlightDelivery]) -> None:
        """Let these wait."""
        for work in works:
            waiting = self._waiting.get(work.consumer)
            if waiting is None:
                waiting = self._waiting[work.consumer] = deque()
            waiting.append(work)

    def take(self) -> list[InFlightDelivery]:
        """The next batch, which now runs; empty: no work that waits may run now."""
        consumer = self._next()
        if consumer is None:
            return []
        self._running[consumer] += 1
        waiting = self._waiting.pop(consumer)
        works = [waiting.popleft() for _ in range(min(len(waiting), self._batch_size))]
        if waiting:
            self._waiting[consumer] = waiting  # to the end: consumers take turns
        return works

    def ended(self, consumer: AnyConsumer) -> None:
        """A batch of this consumer runs no longer."""
        self._running[consumer] -= 1

    def withdraw(self, consumer: AnyConsumer) -> Sequence[InFlightDelivery]:
        """Remove and return the works of a consumer that wait."""
        return self._waiting.pop(consumer, ())

    def clear(self) -> list[InFlightDelivery]:
        """Remove and return all works that wait."""
        works = [work for waiting in self._waiting.values() for work in waiting]
        self._waiting.clear()
        return works

    def _next(self) -> AnyConsumer | None:
        """The consumer that has waited longest of those that may run one more batch."""
        for consumer in self._waiting:
            most = consumer.options.concurrency
            if most is None or self._running[consumer] < most:
                return consumer
        return None
