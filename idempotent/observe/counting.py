"""What a process counts: outcomes and events of its consumers. What it has measured: its outboxes and its stores."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from idempotent.admin import StoreStats
from idempotent.forks import free_in_child
from idempotent.observe.events import Event, OutboxStats, Timed
from idempotent.observe.observers import Observer, Observers
from idempotent.observe.timing import Durations
from idempotent.outcomes import Outcome

CountEvent: TypeAlias = Callable[[str, Event], None]
"""Counts an event of a consumer (`subject:group`)."""

# An older measure is not shown: its relay has stopped, or another process measures the outbox now.
_VALID_S: Final = 60.0


class Counters(Observer):
    """Counts by consumer and outcome or event. Thread-safe."""

    def __init__(self) -> None:
        self._durations: Durations | None = None
        self._lock = free_in_child(threading.Lock())
        self._counts: defaultdict[tuple[str, Outcome | Event], int] = defaultdict(int)

    def declared(self, consumer: str) -> None:
        """Begin at 0: `increase()` of Prometheus does not see a series whose first value is 1."""
        for what in (*Outcome, *Event):
            self.add(consumer, what, 0)
        if self._durations is not None:
            self._durations.declared(consumer)

    def add(self, consumer: str, what: Outcome | Event, count: int = 1) -> None:
        """Count `what` for a consumer (`subject:group`)."""
        name = (consumer, what)
        with self._lock:
            self._counts[name] += count

    counted = add

    @property
    def durations(self) -> Durations:
        """How long the same messages took. They are measured from the first time that this is asked for."""
        if self._durations is None:
            self._durations = Durations()
            for consumer in {consumer for consumer, _ in self.snapshot()}:
                self._durations.declared(consumer)
        return self._durations

    @property
    def wants_times(self) -> bool:
        """Whether somebody has asked for durations."""
        return self._durations is not None

    def timed(self, consumer: str, times: Sequence[Timed]) -> None:
        """Add durations to their histograms."""
        if self._durations is not None:
            self._durations.timed(consumer, times)

    def snapshot(self) -> dict[tuple[str, Outcome | Event], int]:
        """A copy of all counts."""
        with self._lock:
            return dict(self._counts)


counters: Final = Counters()


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


class OutboxMeasures(Observer):
    """The last measure of each outbox, and what was published and refused. Thread-safe."""

    def __init__(self) -> None:
        self._lock = free_in_child(threading.Lock())
        self._stats: dict[str, tuple[float, OutboxStats]] = {}
        self._relayed: dict[str, tuple[int, int]] = {}

    def measured(self, outbox: str, stats: OutboxStats) -> None:
        """Keep the newest measure."""
        with self._lock:
            self._stats[outbox] = (time.monotonic(), stats)
            self._relayed.setdefault(outbox, (0, 0))

    def relayed(self, outbox: str, published: int, refused: int) -> None:
        """Add up."""
        with self._lock:
            before = self._relayed.get(outbox, (0, 0))
            self._relayed[outbox] = (before[0] + published, before[1] + refused)

    def stats(self) -> dict[str, OutboxStats]:
        """The measures of the last minute, by the name of the outbox's table."""
        now = time.monotonic()
        with self._lock:
            return {name: stats for name, (at, stats) in self._stats.items() if now - at < _VALID_S}

    def totals(self) -> dict[str, tuple[int, int]]:
        """Messages published, and refusals, since the process began, by the name of the outbox's table."""
        with self._lock:
            return dict(self._relayed)


outboxes: Final = OutboxMeasures()


class StoreMeasures:
    """The last measure of each store that this process measures, while no other does. Thread-safe.

    Attributes:
        wanted: workers that start from now on take part in measuring their stores.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._lock = free_in_child(threading.Lock())
        self._stats: dict[str, tuple[float, StoreStats]] = {}

    def measured(self, store: str, stats: StoreStats, valid_s: float = _VALID_S) -> None:
        """Show a measure from now on, for so many seconds at most."""
        with self._lock:
            self._stats[store] = (time.monotonic() + valid_s, stats)

    def forget(self, store: str) -> None:
        """Show it no longer: another process measures the store, or none does."""
        with self._lock:
            self._stats.pop(store, None)

    def stats(self) -> dict[str, StoreStats]:
        """The measures by the name of the store."""
        now = time.monotonic()
        with self._lock:
            return {name: stats for name, (until, stats) in self._stats.items() if now < until}


stores: Final = StoreMeasures()
