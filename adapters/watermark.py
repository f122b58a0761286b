"""Watermark: the last position before which nothing is unfinished."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

P = TypeVar("P")


class Watermark(Generic[P]):
    """What a cumulative acknowledgement may cover: AMQP `multiple`, STOMP `client`, a Kafka offset.

    Positions count in the order in which they were added, never by arithmetic: offsets have gaps, and STOMP ids are
    strings. Not thread-safe; it belongs to the thread that owns the connection.
    """

    def __init__(self) -> None:
        """Nothing delivered yet."""
        self._order: deque[P] = deque()
        self._unfinished: set[P] = set()
        self._last: P | None = None

    def __len__(self) -> int:
        """Positions that the mark has not passed."""
        return len(self._order)

    def add(self, position: P) -> None:
        """A delivery, in the order of deliveries."""
        self._order.append(position)
        self._unfinished.add(position)

    def finish(self, position: P) -> bool:
        """The delivery needs nothing any more. False: it is not open (finished before, or never added)."""
        if position not in self._unfinished:
            return False
        self._unfinished.remove(position)
        while self._order and self._order[0] not in self._unfinished:
            self._last = self._order.popleft()
        return True

    @property
    def last(self) -> P | None:
        """The last position that everything before is finished with, itself included; None: none yet."""
        return self._last

    @property
    def oldest(self) -> P | None:
        """The first unfinished position: what holds the mark back."""
        return self._order[0] if self._order else None
