"""Incident: a fault that really happened, and when."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from idempotent.torture.faults.kinds import FaultKind


class Mishap(Enum):
    """An incident outside the schedule."""

    STARVED = "starved"
    """The OS did not schedule a consumer for a while, without a planned pause."""
    ENDED = "ended by itself"
    """A consumer ended without a kill or a signal."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident.

    Attributes:
        kind: what happened.
        at: its start, on the system's monotonic clock, in seconds.
        until: its end; the same as `at` for an incident without a length.
        process: the process that it hit; empty: all of them, or the producer.
        point: the crash point at which it happened, if any.
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
        """Its length in seconds."""
        return self.until - self.at
