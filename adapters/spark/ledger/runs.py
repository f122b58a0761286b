"""Runs: units of work, their states, and when a change of state is allowed.

::

            prepare              commit
    OPEN ────────────► PREPARED ────────► COMMITTED      one row commits all claims of the run
      │ abort; by other runs once its lease has ended
      └──────────────► ABORTED                           for good: the next begin makes generation + 1

A PREPARED run may have published already. Only a person aborts it, after a check that none of its output is published.

One driver at a time has a run. Each `begin` of an unfinished run is another attempt, with an epoch of its own, and
every change is conditional on the newest epoch. A claim is marked with the epoch that made or confirmed it. Only the
claims of the PREPARED epoch count: a key that an earlier attempt claimed and that one did not meet is free.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from idempotent.errors import ConfigurationError
from idempotent.keys import Key, KeySpace, consumer_in, id_in
from idempotent.schema import DRIVER_LENGTH

MICROSECONDS: Final = 1_000_000
_TOKEN_BITS: Final = 63
_MARGIN: Final = 0.1
# The end of the year 9999, after which a datetime cannot be.
_LAST_S: Final = 253402300799


class RunState(IntEnum):
    """The state of a run. The numbers are stored."""

    UNKNOWN = 0
    """The store has no run with this token. Never stored."""
    OPEN = 1
    """The run makes claims. Other runs may abort it once its lease has ended."""
    PREPARED = 2
    """All claims are made, and the run publishes. No other run aborts it, and no other attempt evaluates it."""
    COMMITTED = 3
    """Final: the claims of its prepared attempt count, and their keys are duplicates for every other run."""
    ABORTED = 4
    """Final: its claims do not count, and any run takes their keys over."""

    @property
    def is_final(self) -> bool:
        """Whether the state never changes again, so that it may be cached."""
        return self in (RunState.COMMITTED, RunState.ABORTED)


def run_key(consumer: str, run_id: str) -> Key:
    """The key under which a store finds a run by its names."""
    return KeySpace(consumer, "run").key(run_id)


def names_in(text: str) -> tuple[str, str]:
    """The consumer and the run_id in the readable key of a run, as far as that tells them."""
    return unquote(consumer_in(text).rpartition(":")[0]), unquote(id_in(text))


def consumer_shown(consumer: str) -> str:
    """The name of a consumer in the readable keys of its runs."""
    return names_in(run_key(consumer, "").text)[0]


@dataclass(frozen=True, slots=True)
class RunRef:
    """One attempt at one generation of a run. Picklable.

    Attributes:
        consumer: the consumer that claims the keys.
        run_id: names the unit of work, never an attempt: the same input has the same run_id after a crash.
        generation: 1, and one more after each abort.
        token: random, positive, 63 bits: owns the claims. Each generation of each run has a token of its own.
        epoch: how often this generation had been begun when this attempt began it, from 1.
    """

    consumer: str
    run_id: str
    generation: int
    token: int
    epoch: int

    def __str__(self) -> str:
        return f"run {self.run_id!r} of consumer {self.consumer!r}, generation {self.generation}, epoch {self.epoch}"


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as stored: how far it is, and which of its claims count.

    Attributes:
        ref: its identity; of a row that was read, with the epoch of the newest attempt. Of one that was found by its
            token, with the names as far as the readable key tells them.
        state: its state.
        fingerprint: of its input; None if `begin` was given none.
        output_ref: where its output is, as given to `commit`.
        lease_until_us: when another driver may go on with it, and other runs may abort it if it is OPEN. Microseconds
            since 1970 by the store's clock.
        began_at_us: when this generation was first begun, likewise.
        now_us: the store's clock when the row was read.
        prepared: the epoch of the attempt that was PREPARED; 0 before.
        manifest: what that attempt staged, as given to `prepare`.
        driver: host and process of the newest attempt; empty if an older version of this package began it.
    """

    ref: RunRef
    state: RunState
    fingerprint: bytes | None
    output_ref: str | None
    lease_until_us: int
    began_at_us: int
    now_us: int
    prepared: int = 0
    manifest: bytes | None = None
    driver: str = ""

    @property
    def lapsed(self) -> bool:
        """Whether the lease had ended when the row was read."""
        return self.lease_until_us < self.now_us

    @property
    def lease_rest_s(self) -> float:
        """Seconds until the end of the lease when the row was read."""
        return (self.lease_until_us - self.now_us) / MICROSECONDS

    @property
    def is_closed(self) -> bool:
        """Whether all claims are made."""
        return self.state in (RunState.PREPARED, RunState.COMMITTED)

    def admits(self, epoch: int) -> bool:
        """Whether the attempt of this epoch may evaluate: the newest, and once PREPARED only the prepared one."""
        if self.state is RunState.COMMITTED:
            return epoch == self.prepared
        return epoch == self.ref.epoch and (self.state is not RunState.PREPARED or epoch == self.prepared)

    def counts(self, mark: int) -> bool:
        """Whether claims with this mark are in committed output."""
        return self.state is RunState.COMMITTED and mark == self.prepared

    def frees(self, mark: int) -> bool:
        """Whether claims with this mark can never be in committed output."""
        return self.state is RunState.ABORTED or (self.is_closed and mark != self.prepared)

    def __str__(self) -> str:
        holder = f" ({self.holder})" if self.state in (RunState.OPEN, RunState.PREPARED) else ""
        return f"run {self.ref.run_id!r}, which is {self.state.name}{holder}"

    @property
    def holder(self) -> str:
        """Which driver has it, and until when, in words."""
        until = datetime.fromtimestamp(min(self.lease_until_us // MICROSECONDS, _LAST_S), UTC).isoformat()
        name, rest_s = self.driver or "of unknown name", self.lease_rest_s
        if self.lapsed:
            return (
                f"the lease of driver {name} ended {-rest_s:.0f} s ago, at {until}, and nobody has renewed it"
            )
        return f"driver {name} has it until {until}, {rest_s:.1f} s from now, unless it renews its lease"

    @classmethod
    def unknown(cls, token: int) -> RunRow:
        """In the place of a row that the store does not have."""
        return cls(RunRef("", "", 0, token, 0), RunState.UNKNOWN, None, None, 0, 0, 0)

    @classmethod
    def stored(cls, names: tuple[str, str], columns: Sequence[Any]) -> RunRow:
        """A row as a store's driver returns it, with numbers and texts as bytes perhaps.

        Args:
            names: consumer and run_id.
            columns: token, generation, state, epoch, fingerprint, output_ref, end of the lease, begin, prepared epoch,
                driver, the store's clock, manifest.
        """
        *head, fingerprint, output_ref, lease_until, began_at, prepared, driver, now, manifest = columns
        token, generation, state, epoch = map(int, head)
        return cls(
            RunRef(*names, generation, token, epoch),
            RunState(state),
            fingerprint=bytes(fingerprint) if fingerprint else None,
            output_ref=output_ref.decode() if isinstance(output_ref, bytes) else output_ref,
            lease_until_us=int(lease_until),
            began_at_us=int(began_at),
            now_us=int(now),
            prepared=int(prepared or 0),
            manifest=None if manifest is None else bytes(manifest),
            driver=driver.decode() if isinstance(driver, bytes) else driver or "",
        )

    def at(self, epoch: int) -> RunRow:
        """The row as the attempt of this epoch has it."""
        return replace(self, ref=replace(self.ref, epoch=epoch))


@dataclass(frozen=True, slots=True)
class RunChange:
    """A change of one run's row, which a store makes in one atomic step iff all conditions hold.

    Attributes:
        within: condition: the state is one of these.
        to: the new state; None keeps it. A change to PREPARED also stores the epoch as the prepared one.
        lease_us: the lease ends this many microseconds from now; None keeps it.
        epoch: condition: the epoch is this one; None accepts any.
        resumes: the epoch grows by 1, and the driver is this one.
        owned: condition: the run has this many OWNED claims with the mark of its epoch; None does not count them.
        max_age_us: condition: the run began at most this many microseconds ago; None accepts any age.
        only_lapsed: condition: the lease has ended.
        fingerprint: stored if the row has none.
        manifest: stored unless None.
        output_ref: stored unless None.
        lock_s: seconds to wait for a transaction that has the row; None: as the database does.
    """

    within: frozenset[RunState]
    to: RunState | None = None
    lease_us: int | None = None
    epoch: int | None = None
    resumes: bool = False
    owned: int | None = None
    max_age_us: int | None = None
    only_lapsed: bool = False
    fingerprint: bytes | None = None
    manifest: bytes | None = None
    output_ref: str | None = None
    lock_s: int | None = None


class Collected(NamedTuple):
    """What garbage collection did.

    Attributes:
        claims: deleted.
        runs: deleted.
        aborted: OPEN runs that nobody went on with for a retention.
    """

    claims: int = 0
    runs: int = 0
    aborted: int = 0


class Retention:
    """How long claims are kept, and how long a run may take for that.

    Args:
        seconds: that a claim is kept.

    Attributes:
        us: the same in microseconds.
        margin_us: a tenth of it, for what comes after a run's last claim.
        max_age_us: the most microseconds from the begin of a run to its commit. A claim may be as old as its run, and
            must outlive the publishing and the duplicates to come.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds: Final = seconds
        self.us: Final = microseconds(seconds)
        self.margin_us: Final = int(self.us * _MARGIN)
        self.max_age_us: Final = self.us - self.margin_us

    def lease_us(self, lease_s: float) -> int:
        """The lease of a run in microseconds.

        Raises:
            ConfigurationError: it is not positive, or longer than the margin.
        """
        lease_us = int(lease_s * MICROSECONDS)
        if not 0 < lease_us <= self.margin_us:
            raise ConfigurationError(
                f"lease_s must be more than 0 and at most a tenth of the retention of {self.seconds:g} s, "
                f"not {lease_s!r}"
            )
        return lease_us


def microseconds(seconds: float) -> int:
    """A duration in microseconds, at least one."""
    return max(int(seconds * MICROSECONDS), 1)


def this_driver() -> str:
    """The host and the process that begin a run, for people."""
    return f"{ascii(socket.gethostname())[1:-1]}:{os.getpid()}"[-DRIVER_LENGTH:]


def next_ref(consumer: str, run_id: str, newest: RunRow | None) -> RunRef:
    """The first attempt at the generation after the newest, with a token different from those of all other runs."""
    token = secrets.randbits(_TOKEN_BITS) or 1
    return RunRef(consumer, run_id, 1 if newest is None else newest.ref.generation + 1, token, epoch=1)
