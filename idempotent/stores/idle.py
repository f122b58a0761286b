"""Idle: a stack of idle connections; the most recently used one is taken first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from idempotent.forks import generation

C = TypeVar("C")

# Kept so that they are never garbage-collected: a finalizer in the child would end the parent's session.
_inherited: Final[list[object]] = []


class Idle(Generic[C]):
    """A thread-safe stack of connections, emptied in the child of a fork.

    n threads that use connections at the same time create n of them, and each thread mostly gets its own again.
    """

    __slots__ = ("_connections", "_generation")

    def __init__(self) -> None:
        """Start empty."""
        self._connections: deque[C] = deque()
        self._generation = generation.number

    def __len__(self) -> int:
        return len(self._connections)

    def take(self) -> C | None:
        """Remove and return the most recently used connection; None when the stack is empty."""
        if self._generation != generation.number:
            self._forget_parents()
        try:
            return self._connections.pop()
        except IndexError:
            return None

    def put(self, connection: C) -> None:
        """Add a connection that is ready to be used again."""
        self._connections.append(connection)

    def drain(self) -> Iterator[C]:
        """Remove all connections, one by one."""
        while (connection := self.take()) is not None:
            yield connection

    def _forget_parents(self) -> None:
        # After fork() the sockets belong to the parent: forget them without closing.
        _inherited.append(self._connections)
        self._connections = deque()
        self._generation = generation.number  # last, because other threads take connections once it matches
