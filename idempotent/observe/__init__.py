"""Observers of messages, and counters. `idempotent.observe.prometheus` exports the counters."""

from __future__ import annotations

from idempotent.observe.counting import Counters, OutboxMeasures, counters, outboxes
from idempotent.observe.events import Event, OutboxStats
from idempotent.observe.observers import Observer, Observers

__all__ = [
    "Counters",
    "Event",
    "Observer",
    "Observers",
    "OutboxMeasures",
    "OutboxStats",
    "counters",
    "outboxes",
]
