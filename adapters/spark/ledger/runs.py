"""Runs: units of work, their states, and when a change of state is allowed.

::

            prepare              commit
    OPEN ────────────► PREPARED ────────► COMMITTED      one row commits all claims of the run
      │ abort; by other runs once its lease has ended
      └──────────────► ABORTED                           for good: the next begin makes generation + 1

A PREPARED run cannot be aborted: it may have published already.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

MICROSECONDS: Final = 1_000_000
_TOKEN_BITS: Final = 63


class RunState(IntEnum):
    """The state of a run. The numbers are stored."""

    UNKNOWN = 0
    """The store has no run with this token. Never stored."""
    OPEN = 1
    """The run makes claims. Other runs may abort it once its lease has ended."""
    PREPARED = 2
    """All claims are made, and the run publishes. It cannot be aborted, and makes no more claims."""
    COMMITTED = 3
    """Final: its claims count, and their keys are duplicates for every other run."""
    ABORTED = 4
    """Final: its claims do not count, and any run takes their keys over."""

    @property
    def is_final(self) -> bool:
        """Whether the state never changes again, so that it may be cached."""
        return self in (RunState.COMMITTED, RunState.ABORTED)


@dataclass(frozen=True, slots=True)
class RunRef:
    """One generation of one run. Picklable.

    Attributes:
        consumer: the consumer that claims the keys.
        run_id: names the unit of work, never an attempt: the same input has the same run_id after a crash.
        generation: 1, and one more after each abort.
        token: random, positive, 63 bits: owns the claims. Each generation of each run has a token of its own.
    """

    consumer: str
    run_id: str
    generation: int
    token: int

    def __str__(self) -> str:
        return f"run {self.run_id!r} of consumer {self.consumer!r}, generation {self.generation}"


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as stored.

    Attributes:
        ref: its identity.
        state: its state.
        epoch: how often this generation was begun or resumed, from 1.
        fingerprint: of its input; None if `begin` was given none.
        output_ref: where its output is, as given to `commit`.
        lease_until_us: when other runs may abort it if it is OPEN. Microseconds since 1970 by the store's clock.
        began_at_us: when this generation was first begun, likewise.
        now_us: the store's clock when the row was read.
    """

    ref: RunRef
    state: RunState
    epoch: int
    fingerprint: bytes | None
    output_ref: str | None
    lease_until_us: int
    began_at_us: int
    now_us: int

    @property
    def lapsed(self) -> bool:
        """Whether the lease had ended when the row was read."""
        return self.lease_until_us < self.now_us


@dataclass(frozen=True, slots=True)
class RunChange:
    """A change of one run's row, which a store makes in one atomic step iff all conditions hold.

    `holds` and `applied` are the rule; SQL and Lua carry it out in the store.

    Attributes:
        within: condition: the state is one of these.
        to: the new state; None keeps it.
        lease_us: the lease ends this many microseconds from now; None keeps it.
        seen_epoch: condition: the epoch is this one, and grows by 1; None accepts and keeps any.
        max_age_us: condition: the run began at most this many microseconds ago; None accepts any age.
        only_lapsed: condition: the lease has ended.
        fingerprint: stored if the row has none.
        output_ref: stored unless None.
    """

    within: frozenset[RunState]
    to: RunState | None = None
    lease_us: int | None = None
    seen_epoch: int | None = None
    max_age_us: int | None = None
    only_lapsed: bool = False
    fingerprint: bytes | None = None
    output_ref: str | None = None

    def holds(self, row: RunRow, now_us: int) -> bool:
        """Whether all conditions hold for this row at this time of the store's clock."""
        return (
            row.state in self.within
            and (self.seen_epoch is None or row.epoch == self.seen_epoch)
            and (self.max_age_us is None or now_us <= row.began_at_us + self.max_age_us)
            and (not self.only_lapsed or row.lease_until_us < now_us)
        )

    def applied(self, row: RunRow, now_us: int) -> RunRow:
        """The row after the change."""
        return replace(
            row,
            state=row.state if self.to is None else self.to,
            epoch=row.epoch + (self.seen_epoch is not None),
            lease_until_us=row.lease_until_us if self.lease_us is None else now_us + self.lease_us,
            fingerprint=row.fingerprint if row.fingerprint is not None else self.fingerprint,
            output_ref=row.output_ref if self.output_ref is None else self.output_ref,
        )


def new_token() -> int:
    """A random token, different from those of all other runs."""
    return secrets.randbits(_TOKEN_BITS) or 1
