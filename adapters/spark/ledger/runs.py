"""Runs: units of work, their states, and which change of state is allowed when.

::

            prepare              commit
    OPEN ────────────► PREPARED ────────► COMMITTED      one row commits all claims of the run
      │ abort; by others once its lease has ended
      └──────────────► ABORTED                           for good: the next begin makes generation + 1

Nobody may abort a PREPARED run: it may have published already.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

MICROSECONDS: Final = 1_000_000
_TOKEN_BITS: Final = 63


class RunState(IntEnum):
    """Where a run is in its life. The numbers are stored."""

    UNKNOWN = 0
    """The store does not know the token. Never stored."""
    OPEN = 1
    """It makes claims. Others may abort it once its lease has ended."""
    PREPARED = 2
    """All its claims are made, and it publishes. Nobody can abort it, and it makes no more claims."""
    COMMITTED = 3
    """Its claims count for good: their keys are duplicates for everybody else."""
    ABORTED = 4
    """Its claims count no more: whoever wants their keys takes them over."""

    @property
    def is_final(self) -> bool:
        """Whether it never changes again, so that it may be remembered."""
        return self in (RunState.COMMITTED, RunState.ABORTED)


@dataclass(frozen=True, slots=True)
class RunRef:
    """One generation of one run: what executors need to know. Picklable.

    Attributes:
        consumer: whose keys it claims.
        run_id: names the unit of work, never an attempt: the same for the same input after a crash.
        generation: 1, and one more after each abort.
        token: random, positive, 63 bits. The owner of all its claims: there is no other (run_id, generation) with it.
    """

    consumer: str
    run_id: str
    generation: int
    token: int

    def __str__(self) -> str:
        return f"run {self.run_id!r} of consumer {self.consumer!r}, generation {self.generation}"


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as the store has it.

    Attributes:
        ref: which.
        state: where it is in its life.
        epoch: how often it was begun or resumed, from 1.
        fingerprint: of its input; None: nobody said.
        output_ref: where its output is, as `commit` was told.
        lease_until_us: when others may abort it if it is OPEN. Microseconds since 1970 by the store's clock.
        began_at_us: when this generation was begun first, likewise.
        now_us: the store's clock at the reading.
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
        """Whether its lease had ended at the reading."""
        return self.lease_until_us < self.now_us


@dataclass(frozen=True, slots=True)
class RunChange:
    """A change of one run's row, made by the store in one atomic step iff all its conditions hold then.

    Attributes:
        within: condition: the state is one of these.
        to: the new state; None: it stays.
        lease_us: the lease is to end so many microseconds from now; None: it stays.
        seen_epoch: condition: the epoch is this one; it is bumped. None: it does not matter and stays.
        max_age_us: condition: it was begun no more microseconds ago than this.
        only_lapsed: condition: its lease has ended.
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


def new_token() -> int:
    """A token that no run has had before."""
    return secrets.randbits(_TOKEN_BITS) or 1
