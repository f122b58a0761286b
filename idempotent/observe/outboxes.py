"""The process-wide measures of the outboxes that relays of this process publish."""

from __future__ import annotations

import threading
import time
from typing import Final

from idempotent.forks import free_in_child
from idempotent.observe.events import OutboxStats
from idempotent.observe.observers import Observer

# An older measure is not shown: its relay has stopped, or another process measures the outbox now.
_VALID_S: Final = 60.0


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
