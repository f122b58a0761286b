"""RunLifecycle: begin, resume, prepare, commit and abort a run, with all rules of runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from idempotent.adapters.spark.ledger.refusals import unknown_run
from idempotent.adapters.spark.ledger.runs import MICROSECONDS, RunChange, RunRef, RunRow, RunState, new_token
from idempotent.errors import (
    ClaimsExpiredError,
    ConfigurationError,
    RunFencedError,
    RunInputChangedError,
    StoreBusyError,
)

_ROUNDS: Final = 20
_MARGIN: Final = 0.1
_MAX_FINGERPRINT: Final = 64
_ALIVE: Final = frozenset({RunState.OPEN, RunState.PREPARED, RunState.COMMITTED})


class RunLifecycle(ABC):
    """The runs of one store. Safe for threads; survives a fork.

    Every method raises StoreError when the store failed or did not answer; an error is never a verdict.

    Args:
        where: the store, without its password, for error messages.
        retention_s: seconds that a claim is kept.
    """

    def __init__(self, where: str, *, retention_s: float) -> None:
        """Store the settings."""
        self.where: Final = where
        self.retention_s: Final = retention_s
        self._retention_us: Final = max(int(retention_s * MICROSECONDS), 1)
        self._margin_us: Final = int(self._retention_us * _MARGIN)

    def begin(
        self, consumer: str, run_id: str, *, fingerprint: bytes | None = None, lease_s: float
    ) -> RunRow:
        """Begin a run, or resume it where a crash left it. Concurrent calls agree on one row.

        The newest generation is resumed if it is OPEN, PREPARED or COMMITTED: its lease is renewed and its epoch grows
        by 1. If the run is new, or ABORTED, the next generation is begun, OPEN, with epoch 1.

        Args:
            consumer: the consumer that claims the keys.
            run_id: names the unit of work.
            fingerprint: of the input, 1 to 64 bytes; None: not compared.
            lease_s: seconds during which other runs cannot abort it; at most a tenth of the retention.

        Returns:
            The row, with the epoch that this call gave it.

        Raises:
            RunInputChangedError: the run was begun with another fingerprint.
            ConfigurationError: a fingerprint or a lease of an invalid length.
            StoreBusyError: other drivers begin and abort the run all the time.
        """
        lease_us = self._lease_us(lease_s)
        if fingerprint is not None and not 0 < len(fingerprint) <= _MAX_FINGERPRINT:
            raise ConfigurationError(
                f"a fingerprint has 1 to {_MAX_FINGERPRINT} bytes, not {len(fingerprint)}"
            )
        for _ in range(_ROUNDS):
            newest = self._newest(consumer, run_id)
            if newest is None or newest.state is RunState.ABORTED:
                generation = 1 if newest is None else newest.ref.generation + 1
                ref = RunRef(consumer, run_id, generation, new_token())
                row = self._begin_next(ref, newest, fingerprint, lease_us)
            else:
                row = self._resume(newest, fingerprint, lease_us)
            if row is not None:
                return row
        raise StoreBusyError(
            f"run {run_id!r} of consumer {consumer!r} was begun or aborted by others in each of {_ROUNDS} rounds. "
            "Try again"
        )

    def read(self, consumer: str, run_id: str) -> RunRow | None:
        """The newest generation of a run; None if it was never begun, or its retention is over."""
        return self._newest(consumer, run_id)

    def state_of(self, tokens: Collection[int]) -> dict[int, RunState]:
        """The state of each of these tokens; UNKNOWN for a token that the store does not know."""
        if not tokens:
            return {}
        found = self._states(sorted(set(tokens)))
        return {token: found.get(token, RunState.UNKNOWN) for token in tokens}

    def renew(self, ref: RunRef, lease_s: float) -> None:
        """Let the lease of a run end `lease_s` seconds from now.

        Raises:
            RunFencedError: the run was aborted.
            StoreReplacedError: the store does not know the run.
        """
        self._change(ref, RunChange(within=_ALIVE, lease_us=self._lease_us(lease_s)))

    def prepare(self, ref: RunRef) -> None:
        """OPEN -> PREPARED: all claims are made, and the run cannot be aborted any more. No change if it was past OPEN.

        Raises:
            RunFencedError: the run was aborted.
            ClaimsExpiredError: the store may have forgotten claims: abort the run, and begin it again.
            StoreReplacedError: the store does not know the run.
        """
        change = RunChange(
            within=frozenset({RunState.OPEN}), to=RunState.PREPARED, max_age_us=self._max_age_us
        )
        self._change(ref, change, done=frozenset({RunState.PREPARED, RunState.COMMITTED}))

    def commit(self, ref: RunRef, output_ref: str | None = None, *, accept_loss: bool = False) -> None:
        """PREPARED -> COMMITTED: the claims count for ever. No change if it was COMMITTED.

        Args:
            ref: the run.
            output_ref: where its output is; stored with the run.
            accept_loss: commit even if the store may have forgotten claims. The output is published already, and only a
                committed run makes the remaining claims count; other runs may publish the forgotten keys again.

        Raises:
            RunFencedError: the run is OPEN or ABORTED.
            ClaimsExpiredError: the store may have forgotten claims.
            StoreReplacedError: the store does not know the run.
        """
        max_age_us = None if accept_loss else self._max_age_us
        within = frozenset({RunState.PREPARED})
        change = RunChange(within, to=RunState.COMMITTED, max_age_us=max_age_us, output_ref=output_ref)
        self._change(ref, change, done=frozenset({RunState.COMMITTED}))

    def abort(self, ref: RunRef) -> None:
        """OPEN -> ABORTED: the claims do not count. No change if it was ABORTED.

        Raises:
            RunFencedError: the run is PREPARED or COMMITTED, so it may have published.
            StoreReplacedError: the store does not know the run.
        """
        change = RunChange(within=frozenset({RunState.OPEN}), to=RunState.ABORTED)
        self._change(ref, change, done=frozenset({RunState.ABORTED}))

    def abort_lapsed(self, token: int) -> bool:
        """OPEN -> ABORTED iff its lease has ended by the store's clock; called by other runs.

        Returns whether this call aborted it.
        """
        change = RunChange(within=frozenset({RunState.OPEN}), to=RunState.ABORTED, only_lapsed=True)
        return self._change_run(token, change)

    def _begin_next(
        self, ref: RunRef, newest: RunRow | None, fingerprint: bytes | None, lease_us: int
    ) -> RunRow | None:
        self._insert_run(ref, None if newest is None else newest.ref.token, fingerprint, lease_us)
        row = self._newest(ref.consumer, ref.run_id)
        # Epoch 1 is this driver's, even if another driver has resumed the run since.
        return replace(row, epoch=1) if row is not None and row.ref.token == ref.token else None

    def _resume(self, row: RunRow, fingerprint: bytes | None, lease_us: int) -> RunRow | None:
        if None not in (fingerprint, row.fingerprint) and fingerprint != row.fingerprint:
            raise RunInputChangedError(
                f"{row.ref} is {row.state.name} and was begun with other input. A run_id names one unit of work: "
                "give the new one another run_id"
            )
        change = RunChange(_ALIVE, lease_us=lease_us, seen_epoch=row.epoch, fingerprint=fingerprint)
        if not self._change_run(row.ref.token, change):
            return None
        resumed = self._find(row.ref)
        # The epoch of this call, as above.
        return None if resumed is None else replace(resumed, epoch=row.epoch + 1)

    def _change(self, ref: RunRef, change: RunChange, done: frozenset[RunState] = frozenset()) -> None:
        """Make the change, or raise the reason why not. `done`: states in which it has been made already."""
        lost = None if change.max_age_us is None else self._lost(ref.token)
        if lost is None and self._change_run(ref.token, change):
            return
        row = self._find(ref)
        if row is None:
            raise unknown_run(ref, self.where)
        if row.state in done:
            return
        if row.state not in change.within:
            raise RunFencedError(f"{ref} is {row.state.name}" + _ADVICE.get(row.state, ""))
        if lost is None and change.max_age_us is None:
            raise StoreBusyError(f"another driver changed {ref} at the same time. Try again")
        way_out = (
            "abort it and begin it again" if row.state is RunState.OPEN else "see commit(accept_loss=True)"
        )
        reason = lost or f"the run began too long ago for a retention of {self.retention_s:g} s"
        raise ClaimsExpiredError(
            f"the store may have forgotten claims of {ref}: {reason}. It stays {row.state.name}; {way_out}"
        )

    @property
    def _max_age_us(self) -> int:
        # A claim may be as old as its run, and must outlive the publishing and the duplicates to come.
        return self._retention_us - self._margin_us

    def _lease_us(self, lease_s: float) -> int:
        lease_us = int(lease_s * MICROSECONDS)
        if not 0 < lease_us <= self._margin_us:
            raise ConfigurationError(
                f"lease_s must be more than 0 and at most a tenth of the retention of {self.retention_s:g} s, "
                f"not {lease_s!r}"
            )
        return lease_us

    @abstractmethod
    def _newest(self, consumer: str, run_id: str) -> RunRow | None:
        """The row of the greatest generation of a run."""

    @abstractmethod
    def _find(self, ref: RunRef) -> RunRow | None:
        """The row with this token."""

    @abstractmethod
    def _states(self, tokens: Collection[int]) -> Mapping[int, RunState]:
        """The states of the runs that the store knows."""

    @abstractmethod
    def _insert_run(self, ref: RunRef, newest: int | None, fingerprint: bytes | None, lease_us: int) -> None:
        """Add an OPEN row of epoch 1 with this token, iff its generation does not exist, in one atomic step.

        Args:
            ref: the row's identity.
            newest: token of the newest generation so far; None if the run is new.
            fingerprint: of the input.
            lease_us: the lease ends this many microseconds from now.
        """

    @abstractmethod
    def _change_run(self, token: int, change: RunChange) -> bool:
        """Make a change iff its conditions hold, in one atomic step; whether it was made.

        A change to COMMITTED or ABORTED stores its time.
        """

    def _lost(self, token: int) -> str | None:
        """Why the store may have lost claims of this run; None if it knows of no loss."""
        del token
        return None


_ADVICE: Final = {
    RunState.OPEN: ": prepare it first",
    RunState.PREPARED: ": it may have published, so it can only be committed",
    RunState.COMMITTED: ", which is final",
    RunState.ABORTED: ": its lease ended, or its driver aborted it. Begin it again, for the next generation",
}
