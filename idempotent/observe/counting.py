"""The counters of consumers: process-wide ones, and those of the observers that are told what a checker notices."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Final, TypeAlias

from idempotent.forks import free_in_child
from idempotent.observe.events import Event
from idempotent.observe.observers import Observer, Observers
from idempotent.outcomes import Outcome


class Counters(Observer):
    """Counts by consumer and outcome or event. Thread-safe."""

    def __init__(self) -> None:
        self._lock = free_in_child(threading.Lock())
        self._counts: defaultdict[tuple[str, Outcome | Event], int] = defaultdict(int)

    def add(self, consumer: str, what: Outcome | Event, count: int = 1) -> None:
        """Count `what` for a consumer (`subject:group`)."""
        name = (consumer, what)
        with self._lock:
            self._counts[name] += count

    counted = add

    def snapshot(self) -> dict[tuple[str, Outcome | Event], int]:
        """A copy of all counts."""
        with self._lock:
            return dict(self._counts)


counters: Final = Counters()

CountEvent: TypeAlias = Callable[[str, Event], None]
"""Counts an event of a consumer (`subject:group`)."""


class CheckerEvents:
    """Counts what a checker notices of a message with the observers of its consumer.

    The process-wide counters have it if no consumer of that name is bound to the checker.
    """

    def __init__(self) -> None:
        self._observers: dict[str, Observers] = {}

    def bind(self, consumer: str, observers: Observers) -> None:
        """Count the events of a consumer (`subject:group`) with these observers from now on."""
        self._observers[consumer] = observers

    def count(self, consumer: str, what: Event) -> None:
        """Count an event. From any thread."""
        (self._observers.get(consumer) or _unbound).count(consumer, what)


_unbound: Final = Observers([counters])
