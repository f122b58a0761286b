"""Idle: connections that wait for their next use, the one used last first."""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

from idempotent.forks import generation

C = TypeVar("C")

# Never collected: a finalizer in the child would end the parent's session.
_inherited: Final[list[object]] = []


class Idle(Generic[C]):
    """A stack of connections, for any number of threads, that does not survive a fork.

    Of n threads that use one for a moment, n are made in all, and each thread mostly gets its own again.
    """

    __slots__ = ("_connections", "_generation")

    def __init__(self) -> None:
        """Empty."""
        self._connections: deque[C] = deque()
        self._generation = generation.number

    def __bool__(self) -> bool:
        return bool(self._connections)

    def take(self) -> C | None:
        """The one used last; None when there is none."""
        if self._generation != generation.number:
            self._forget_parents()
        try:
            return self._connections.pop()
        except IndexError:
            return None

    def put(self, connection: C) -> None:
        """Keep one that is ready to be used again."""
        self._connections.append(connection)

    def _forget_parents(self) -> None:
        # After fork() the sockets are the parent's: forget them, close nothing.
        _inherited.append(self._connections)
        self._connections = deque()
        self._generation = generation.number  # last: until then every thread comes here
