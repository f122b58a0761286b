"""Counters of what happens to messages. `idempotent.observe.prometheus` exports them."""

from __future__ import annotations

from idempotent.observe.counting import Counters, Event, counters

__all__ = ["Counters", "Event", "counters"]
