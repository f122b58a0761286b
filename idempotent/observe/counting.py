"""What consumers count, in one process-wide place. `idempotent.observe.prometheus` exports it."""

from __future__ import annotations

import threading
from enum import Enum
from typing import Final

from idempotent.outcomes import Outcome


class Event(Enum):
    """Things worth a counter besides outcomes."""

    RAN_WITHOUT_KEY = "ran_without_key"
    """A handler ran unprotected: no key, or a store that was down, where the consumer allows it."""
    RAN_DISABLED = "ran_disabled"
    """A handler ran although the verdict said no: the kill switch is on."""
    LEASE_TAKEN_OVER = "lease_taken_over"
    """A delivery became the owner of a key whose lease had ended."""
    COMPLETION_LOST = "completion_lost"
    """An effect happened, but somebody else owned the key by then: it may happen twice."""
    COMPLETION_NOT_RECORDED = "completion_not_recorded"
    """An effect happened and the store did not take the completion; it is offered again."""
    RESULT_NOT_STORED = "result_not_stored"
    """The handler's result could not be stored; duplicates get none."""
    GROUP_REPEATED = "group_repeated"
    """A group was rolled back and its messages ran one by one."""
    TRANSACTION_REPEATED = "transaction_repeated"
    """The database undid a transaction, and the message ran again."""


class Counters:
    """Counts by consumer and outcome or event. Thread-safe."""

    def __init__(self) -> None:
        """All zero."""
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, Outcome | Event], int] = {}

    def add(self, consumer: str, what: Outcome | Event, count: int = 1) -> None:
        """Count `what` for a consumer (`subject:group`)."""
        name = (consumer, what)
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + count

    def snapshot(self) -> dict[tuple[str, Outcome | Event], int]:
        """A copy of all counts so far."""
        with self._lock:
            return dict(self._counts)


counters: Final = Counters()
