"""What happens to messages, for those who watch. `idempotent.observe.prometheus` exports the counters."""

from __future__ import annotations

from idempotent.observe.counting import Counters, Event, counters

__all__ = ["Counters", "Event", "counters"]
