"""Wake: wakes the relays of this process when messages have committed."""

from __future__ import annotations

import threading


class Wake:
    """Events, one for each line of each relay: a line clears its own before it looks."""

    def __init__(self) -> None:
        self._events: tuple[threading.Event, ...] = ()

    def add(self) -> threading.Event:
        """An event that is set from now on."""
        event = threading.Event()
        self._events = (*self._events, event)
        return event

    def remove(self, event: threading.Event) -> None:
        """Do not set it any more."""
        self._events = tuple(each for each in self._events if each is not event)

    def set(self) -> None:
        """Wake all, from any thread."""
        for event in self._events:
            event.set()
