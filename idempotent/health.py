"""Finding: what a look at a store's configuration found, for `idempotent doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How bad a finding is."""

    OK = "ok"
    """As it should be."""
    WARNING = "warning"
    """Works now; a crash, a failover or a full memory may repeat an effect."""
    ERROR = "error"
    """Does not work, or will lose keys in normal operation."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: how bad it is.
        what: what was found, one sentence.
        hint: what to do about it; empty when nothing is to be done.
    """

    level: Level
    what: str
    hint: str = ""
