"""Watermark: the last position up to which all deliveries are finished."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

P = TypeVar("P")


class Watermark(Generic[P]):
    """The greatest position that a cumulative acknowledgement may name: AMQP `multiple`, STOMP `client`, Kafka offsets.

    Positions count in the order in which they were added, never by arithmetic: offsets have gaps, and STOMP ids are
    strings. Not thread-safe; it belongs to the thread that owns the connection.
    """

    def __init__(self) -> None:
        self._order: deque[P] = deque()
        self._unfinished: set[P] = set()
        self._last: P | None = None

    def __len__(self) -> int:
        """How many positions the mark has not passed."""
        return len(self._order)

    def add(self, position: P) -> None:
        """Add a delivery. Deliveries are added in their order."""
        self._order.append(position)
        self._unfinished.add(position)

    def finish(self, position: P) -> bool:
        """Mark a delivery as finished. False: it was finished before, or never added."""
        if position not in self._unfinished:
            return False
        self._unfinished.remove(position)
        if position == self._order[0]:
            self._advance()
        return True

    def is_next(self, position: P) -> bool:
        """Whether a delivery is unfinished, and all before it are finished."""
        return bool(self._order) and self._order[0] == position

    def discard(self, position: P) -> None:
        """Take out an unfinished delivery that was settled alone: the mark passes it and never names it."""
        self._unfinished.remove(position)
        self._order.remove(position)
        self._advance()

    @property
    def last(self) -> P | None:
        """The last position up to which all deliveries are finished; None if the first one is not."""
        return self._last

    def _advance(self) -> None:
        while self._order and self._order[0] not in self._unfinished:
            self._last = self._order.popleft()
