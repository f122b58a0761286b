"""Capacity: how many deliveries a worker may receive now, and of which subjects none."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

from idempotent.consumer import AnyConsumer
from idempotent.worker.handlers import HandlerPool
from idempotent.worker.holds import Holds


class Capacity:
    """The rooms of the consumers of one worker.

    Args:
        pool: runs their handlers.
        holds: the deliveries that wait for a check.
        concurrency: the threads of the pool.
        batch_size: messages that are processed together.
        max_held: held deliveries of a consumer at which its room is closed.
    """

    def __init__(
        self, pool: HandlerPool, holds: Holds, concurrency: int, batch_size: int, *, max_held: int
    ) -> None:
        """Serve no consumer yet."""
        self._pool = pool
        self._holds = holds
        self._concurrency = concurrency
        self._batch_size = batch_size
        self._max_held = max_held
        self._shares: dict[AnyConsumer, int] = {}

    def serve(self, consumers: Iterable[AnyConsumer]) -> None:
        """Make a room for each of these consumers."""
        for consumer in consumers:
            threads = min(consumer.options.concurrency or self._concurrency, self._concurrency)
            # One batch waits behind each that runs.
            self._shares[consumer] = 2 * threads * self._batch_size

    @property
    def total(self) -> int:
        """Deliveries that run or wait to run when all rooms are used."""
        return sum(self._shares.values())

    @property
    def largest(self) -> int:
        """Deliveries of one consumer that run or wait to run, at most."""
        return max(self._shares.values())

    def free(self, closed: Container[AnyConsumer]) -> tuple[int, Collection[str]]:
        """The deliveries to receive at most, and the subjects that are full: also those of `closed` consumers."""
        largest, full, may_hold = 0, [], True
        for consumer, share in self._shares.items():
            room = share - self._pool.in_flight.get(consumer, 0)
            if consumer in closed:
                full.append(consumer.subject)
                # Of an adapter that gives them all the same, so that all have to wait.
                may_hold = may_hold and self._holds.of.get(consumer, 0) < self._max_held
            elif room <= 0 or self._holds.of.get(consumer, 0) >= self._max_held:
                full.append(consumer.subject)
            elif room > largest:
                largest = room
        return largest * may_hold, full
