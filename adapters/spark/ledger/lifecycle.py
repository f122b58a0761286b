"""RunLifecycle: begin, resume, prepare, commit and abort. The rules of runs are here and nowhere else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from idempotent.adapters.spark.ledger.runs import MICROSECONDS, RunChange, RunRef, RunRow, RunState, new_token
from idempotent.errors import (
    ClaimsExpiredError,
    ConfigurationError,
    RunFencedError,
    RunInputChangedError,
    StoreBusyError,
    StoreReplacedError,
)

_ROUNDS: Final = 20
_MARGIN: Final = 0.1
_MAX_FINGERPRINT: Final = 64
_ALIVE: Final = frozenset({RunState.OPEN, RunState.PREPARED, RunState.COMMITTED})


class RunLifecycle(ABC):
    """The runs of one store. Safe for threads; survives a fork.

    Every method raises StoreError when the store did not do its part; that is never a verdict.

    Args:
        where: the store, without its password, for error messages.
        retention_s: seconds that a claim is remembered.
    """

    def __init__(self, where: str, *, retention_s: float) -> None:
        """Connect to nothing."""
        self.where: Final = where
        self.retention_s: Final = retention_s
        self._retention_us: Final = max(int(retention_s * MICROSECONDS), 1)
        self._margin_us: Final = int(self._retention_us * _MARGIN)

    def begin(
        self, consumer: str, run_id: str, *, fingerprint: bytes | None = None, lease_s: float
    ) -> RunRow:
        """Begin a run, or resume it where it was left. Races settle on one row.

        The newest generation is resumed, be it OPEN, PREPARED or COMMITTED: its lease is renewed and its epoch
        bumped. If there is none, or it is ABORTED, the next generation is begun, OPEN, with epoch 1.

        Args:
            consumer: whose keys it will claim.
            run_id: names the unit of work.
            fingerprint: of the input, 1 to 64 bytes; None: not compared.
            lease_s: seconds for which nobody else aborts it; at most a tenth of the retention.

        Returns:
            The row, with the epoch that this call gave it.

        Raises:
            RunInputChangedError: it was begun with another fingerprint.
            ConfigurationError: arguments that cannot work.
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
            f"run {run_id!r} of consumer {consumer!r} is begun and aborted all the time. Try again."
        )

    def read(self, consumer: str, run_id: str) -> RunRow | None:
        """The newest generation of a run; None when it was never begun, or is forgotten."""
        return self._newest(consumer, run_id)

    def state_of(self, tokens: Collection[int]) -> dict[int, RunState]:
        """The states of runs, one for each token asked; UNKNOWN for those that the store does not know."""
        if not tokens:
            return {}
        found = self._states(sorted(set(tokens)))
        return {token: found.get(token, RunState.UNKNOWN) for token in tokens}

    def renew(self, ref: RunRef, lease_s: float) -> None:
        """Let the lease of a run end `lease_s` seconds from now.

        Raises:
            RunFencedError: it was aborted.
            StoreReplacedError: the store does not know it.
        """
        self._change(ref, RunChange(within=_ALIVE, lease_us=self._lease_us(lease_s)))

    def prepare(self, ref: RunRef) -> None:
        """OPEN -> PREPARED: all claims are made, now nobody can abort it. Nothing, if it is that or COMMITTED.

        Raises:
            RunFencedError: it was aborted.
            ClaimsExpiredError: claims may be forgotten; abort it, and begin it again.
            StoreReplacedError: the store does not know it.
        """
        change = RunChange(
            within=frozenset({RunState.OPEN}), to=RunState.PREPARED, max_age_us=self._max_age_us
        )
        self._change(ref, change, done=frozenset({RunState.PREPARED, RunState.COMMITTED}))

    def commit(self, ref: RunRef, output_ref: str | None = None, *, accept_loss: bool = False) -> None:
        """PREPARED -> COMMITTED: its claims count for good. Nothing, if it is that.

        Args:
            ref: the run.
            output_ref: where its output is, for whoever asks later.
            accept_loss: commit even if claims may be forgotten. Everything is published already, and only a
                committed run makes the remaining claims count; other runs may publish the forgotten keys again.

        Raises:
            RunFencedError: it is OPEN or ABORTED.
            ClaimsExpiredError: claims may be forgotten.
            StoreReplacedError: the store does not know it.
        """
        max_age_us = None if accept_loss else self._max_age_us
        within = frozenset({RunState.PREPARED})
        change = RunChange(within, to=RunState.COMMITTED, max_age_us=max_age_us, output_ref=output_ref)
        self._change(ref, change, done=frozenset({RunState.COMMITTED}))

    def abort(self, ref: RunRef) -> None:
        """OPEN -> ABORTED: its claims count no more. Nothing, if it is that.

        Raises:
            RunFencedError: it is PREPARED or COMMITTED: it may have published.
            StoreReplacedError: the store does not know it.
        """
        change = RunChange(within=frozenset({RunState.OPEN}), to=RunState.ABORTED)
        self._change(ref, change, done=frozenset({RunState.ABORTED}))

    def abort_lapsed(self, token: int) -> bool:
        """OPEN -> ABORTED iff its lease has ended by the store's clock; for others than its driver.

        Returns whether this call did it.
        """
        change = RunChange(within=frozenset({RunState.OPEN}), to=RunState.ABORTED, only_lapsed=True)
        return self._change_run(token, change)

    def _begin_next(
        self, ref: RunRef, newest: RunRow | None, fingerprint: bytes | None, lease_us: int
    ) -> RunRow | None:
        self._insert_run(ref, None if newest is None else newest.ref.token, fingerprint, lease_us)
        row = self._newest(ref.consumer, ref.run_id)
        # Another driver may have resumed it by now: the epoch that this call made is this driver's.
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
        # The epoch that this call made, as above.
        return None if resumed is None else replace(resumed, epoch=row.epoch + 1)

    def _change(self, ref: RunRef, change: RunChange, done: frozenset[RunState] = frozenset()) -> None:
        """Make the change, or say why not. `done`: states in which there is nothing left to do."""
        lost = None if change.max_age_us is None else self._lost(ref.token)
        if lost is None and self._change_run(ref.token, change):
            return
        row = self._find(ref)
        if row is None:
            raise StoreReplacedError(
                f"{self.where} does not know {ref}: it is another store, was emptied, or forgot it"
            )
        if row.state in done:
            return
        if row.state not in change.within:
            raise RunFencedError(f"{ref} is {row.state.name}" + _ADVICE.get(row.state, ""))
        if lost is None and change.max_age_us is None:
            raise StoreBusyError(f"{ref} is being changed by others. Try again.")
        way_out = (
            "abort it and begin it again" if row.state is RunState.OPEN else "see commit(accept_loss=True)"
        )
        reason = lost or f"it began too long ago for a retention of {self.retention_s:g} s"
        raise ClaimsExpiredError(
            f"claims of {ref} may be forgotten: {reason}. It stays {row.state.name}; {way_out}"
        )

    @property
    def _max_age_us(self) -> int:
        # A claim may be as old as its run. What is left must do to publish, and for the duplicates to come.
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
            newest: token of the newest generation, after which it comes.
            fingerprint: of the input.
            lease_us: the lease ends so many microseconds from now.
        """

    @abstractmethod
    def _change_run(self, token: int, change: RunChange) -> bool:
        """Make a change iff its conditions hold, in one atomic step; whether it was made.

        A change to COMMITTED or ABORTED notes when that was.
        """

    def _lost(self, token: int) -> str | None:
        """Why the store may have lost claims of this run, in words; None: it has not, as far as it can tell."""
        del token
        return None


_ADVICE: Final = {
    RunState.OPEN: ": prepare it first",
    RunState.PREPARED: ": it may have published, so it can only be committed",
    RunState.COMMITTED: ", for good",
    RunState.ABORTED: ": its lease ended, or its driver gave it up. Begin it again, for the next generation",
}
