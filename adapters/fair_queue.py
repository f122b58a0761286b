"""FairQueue: arrived messages that wait for room, by subject."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """First in, first out within a subject; the subjects take turns, so that a slow one does not delay the others."""

    def __init__(self) -> None:
        """Nothing has arrived."""
        self._waiting: dict[str, deque[T]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, subject: str, arrived: T) -> None:
        """Add a message at the end of its subject."""
        waiting = self._waiting.get(subject)
        if waiting is None:
            waiting = self._waiting[subject] = deque()
        waiting.append(arrived)

    def has(self, full: Container[str]) -> bool:
        """Whether a message waits whose subject is not full."""
        return any(subject not in full for subject in self._waiting)

    def take(self, full: Container[str]) -> T | None:
        """Remove and return the next message whose subject is not full; None without one."""
        for subject in self._waiting:
            if subject not in full:
                break
        else:
            return None
        waiting = self._waiting.pop(subject)
        taken = waiting.popleft()
        if waiting:
            self._waiting[subject] = waiting  # to the end
        return taken

    def remove(self, subject: str) -> Collection[T]:
        """Remove and return the messages of a subject."""
        return self._waiting.pop(subject, ())

    def clear(self) -> list[T]:
        """Remove and return all messages."""
        left = [arrived for waiting in self._waiting.values() for arrived in waiting]
        self._waiting.clear()
        return left
