"""Flights: of the calls with one key in this process one asks the store, and the others wait for its result in memory.

Otherwise each copy of a slow call would have a connection of its own to find out that it has to wait.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Final, TypeAlias

from idempotent.forks import free_in_child, generation
from idempotent.message import Message

Landing: TypeAlias = "Future[bytes | None]"
"""What a flight comes to: its stored result; None: none that others could use."""

_lock: Final = free_in_child(threading.Lock())


class Flight:
    """A call that asks the store.

    Attributes:
        message: stands for the call.
        place: its key, in its process.
        landing: what others wait for; None: nobody waits.
        has_landed: it is over.
    """

    __slots__ = ("has_landed", "landing", "message", "place")

    def __init__(self, message: Message) -> None:
        self.message: Final = message
        # A fork does not copy the thread whose flight it is.
        self.place: Final = (generation.number, message.id)
        self.landing: Landing | None = None
        self.has_landed = False

    def awaited(self) -> Landing | None:
        """What it comes to, for another call with its key; None: it is over."""
        with _lock:
            if self.has_landed:
                return None
            if self.landing is None:
                self.landing = Future()
                self.landing.set_running_or_notify_cancel()  # who waits no longer does not cancel it for others
            return self.landing


class Flights:
    """The flights of one consumer in this process."""

    def __init__(self) -> None:
        self._flights: Final[dict[object, Flight]] = {}

    def begin(self, flight: Flight) -> Flight:
        """Begin a flight. Returns the one that its key has: this, or another one, which is to be waited for."""
        return self._flights.setdefault(flight.place, flight)

    def land(self, flight: Flight) -> Landing | None:
        """End a flight, if it has begun.

        Returns the future on which other calls wait; the caller sets it. None: no call waits.
        """
        if self._flights.get(flight.place) is flight:
            del self._flights[flight.place]
        with _lock:
            flight.has_landed = True
        return flight.landing
