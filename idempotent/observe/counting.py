"""The process-wide counters of consumers. `idempotent.observe.prometheus` exports them."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Final

from idempotent.forks import free_in_child
from idempotent.observe.events import Event
from idempotent.observe.observers import Observer
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
