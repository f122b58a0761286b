"""Durations: how long a checker's claims and keys last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from idempotent.checkers.base import AbstractIdempotentChecker

MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Durations:
    """How long things last, in seconds.

    Attributes:
        lease_s: lease of a claim; None: claims never lapse.
        retention_s: how long a key is remembered.
        dead_retention_s: how long a DEAD key is remembered; None: until a person resolves it.
    """

    lease_s: float | None
    retention_s: float
    dead_retention_s: float | None

    @classmethod
    def of(cls, checker: AbstractIdempotentChecker) -> Self:
        """Those that a checker has now."""
        return cls(checker.lease_s, checker.retention_s, checker.dead_retention_s)

    @property
    def lease_us(self) -> int | None:
        """The lease in microseconds."""
        return None if self.lease_s is None else microseconds(self.lease_s)

    @property
    def retention_us(self) -> int:
        """The retention in microseconds."""
        return microseconds(self.retention_s)

    @property
    def dead_retention_us(self) -> int | None:
        """The retention of a DEAD key in microseconds."""
        return None if self.dead_retention_s is None else microseconds(self.dead_retention_s)


def microseconds(seconds: float) -> int:
    """A positive duration in whole microseconds."""
    return max(int(seconds * MICROSECONDS), 1)
