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
        place: its key, in its process.
        content: its fingerprint; None: it has none.
        landing: what others wait for; None: nobody waits.
        has_landed: it is over.
    """

    __slots__ = ("content", "has_landed", "landing", "place")

    def __init__(self, message: Message) -> None:
        # A fork does not copy the thread whose flight it is.
        self.place: Final = (generation.number, message.id)
        self.content: Final = message.body
        self.landing: Landing | None = None
        self.has_landed = False


class Flights:
    """The flights of one consumer in this process."""

    def __init__(self) -> None:
        self._flights: Final[dict[object, Flight]] = {}

    def begin(self, message: Message) -> Flight | None:
        """Begin the flight of a message's key; None: another call has begun it."""
        flight = Flight(message)
        return flight if self._flights.setdefault(flight.place, flight) is flight else None

    def landing(self, message: Message) -> tuple[Landing, bool] | None:
        """What another call with the key comes to, and whether its content is the same; None: it is over."""
        flight = self._flights.get((generation.number, message.id))
        if flight is None:
            return None
        with _lock:
            if flight.has_landed:
                return None
            if flight.landing is None:
                flight.landing = Future()
                flight.landing.set_running_or_notify_cancel()  # who waits no longer does not cancel it for others
            return flight.landing, flight.content == message.body

    def land(self, flight: Flight) -> Landing | None:
        """End a flight. Returns the future on which other calls wait; the caller sets it. None: no call waits."""
        del self._flights[flight.place]
        with _lock:
            flight.has_landed = True
        return flight.landing
