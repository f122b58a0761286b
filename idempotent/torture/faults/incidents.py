"""Incident: something that was really done, and when; with the ledger it makes the history."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from idempotent.torture.faults.kinds import FaultKind


class Mishap(Enum):
    """What nobody planned."""

    STARVED = "starved"
    """A consumer did not get to run for a while, and nobody had paused it."""
    ENDED = "ended by itself"
    """A consumer ended that nobody had told to."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One of them.

    Attributes:
        kind: what.
        at: from when, on the system's monotonic clock, in seconds.
        until: until when; the same as `at` for what takes no time.
        process: whose; empty: everybody's, or the producer's.
        point: the crash point that it met, if it met one.
        detail: more, for people.
    """

    kind: FaultKind | Mishap
    at: float
    until: float
    process: str = ""
    point: str = ""
    detail: str = ""

    @property
    def lasted_s(self) -> float:
        """How long."""
        return self.until - self.at
