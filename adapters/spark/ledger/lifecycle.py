"""RunLifecycle: renew, prepare, commit and abort a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Final

from idempotent.adapters.spark.ledger.refusals import fenced, unknown_run
from idempotent.adapters.spark.ledger.runs import (
    MICROSECONDS,
    RunChange,
    RunRef,
    RunRow,
    RunState,
    Standing,
)
from idempotent.errors import (
    ClaimsExpiredError,
    ConfigurationError,
    RunFencedError,
    StoreBusyError,
    UnpublishedClaimsError,
)

_MARGIN: Final = 0.1
UNFINISHED: Final = frozenset({RunState.OPEN, RunState.PREPARED})
_ENDED_US: Final = -1


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

    def read(self, consumer: str, run_id: str) -> RunRow | None:
        """The newest generation of a run; None if it was never begun, or its retention is over."""
        return self._newest(consumer, run_id)

    def state_of(self, tokens: Collection[int]) -> dict[int, RunState]:
        """The state of each of these tokens; UNKNOWN for a token that the store does not know."""
        return {token: standing.state for token, standing in self.standing_of(tokens).items()}

    def standing_of(self, tokens: Collection[int]) -> dict[int, Standing]:
        """How far each of these tokens' runs is; UNKNOWN for a token that the store does not know."""
        if not tokens:
            return {}
        found = self._standings(sorted(set(tokens)))
        return {token: found.get(token, Standing(RunState.UNKNOWN)) for token in tokens}

    def renew(self, ref: RunRef, lease_s: float) -> None:
        """Let the lease of a run end `lease_s` seconds from now. No change if it was COMMITTED.

        Raises:
            RunFencedError: the run was aborted, or another driver has taken it over.
            StoreReplacedError: the store does not know the run.
        """
        change = RunChange(UNFINISHED, lease_us=self._lease_us(lease_s), epoch=ref.epoch)
        self._change(ref, change, done=frozenset({RunState.COMMITTED}))

    def end_lease(self, ref: RunRef) -> None:
        """Let the lease end now, if this attempt has it: the next driver need not wait."""
        self._change_run(ref.token, RunChange(UNFINISHED, lease_us=_ENDED_US, epoch=ref.epoch))

    def prepare(
        self, ref: RunRef, *, rows: int | None = None, manifest: bytes | None = None, elsewhere: int = 0
    ) -> None:
        """OPEN -> PREPARED: all claims are made, and the run cannot be aborted any more. No change if it was past OPEN.

        Args:
            ref: the run; its attempt becomes the prepared one, and claims with an older mark are free from here on.
            rows: the number of rows to publish, which must be the number of keys that this attempt has claimed, counted
                in the same atomic step. None: not counted; a key that was claimed and is not published is lost.
            manifest: what was staged; every later attempt publishes this and evaluates nothing.
            elsewhere: how many of the rows have their key elsewhere than in this ledger, less the claims here that are
                no row's.

        Raises:
            UnpublishedClaimsError: the number of claims is another one.
            RunFencedError: the run was aborted, or another driver has taken it over.
            ClaimsExpiredError: the store may have forgotten claims: abort the run, and begin it again.
            StoreReplacedError: the store does not know the run.
        """
        change = RunChange(
            within=frozenset({RunState.OPEN}),
            to=RunState.PREPARED,
            epoch=ref.epoch,
            owned=None if rows is None else rows - elsewhere,
            max_age_us=self._max_age_us,
            manifest=manifest,
        )
        self._change(
            ref, change, done=frozenset({RunState.PREPARED, RunState.COMMITTED}), elsewhere=elsewhere
        )

    def commit(self, ref: RunRef, output_ref: str | None = None, *, accept_loss: bool = False) -> None:
        """PREPARED -> COMMITTED: the claims count for ever. No change if it was COMMITTED.

        Args:
            ref: the run.
            output_ref: where its output is; stored with the run.
            accept_loss: commit even if the store may have forgotten claims. The output is published already, and only a
                committed run makes the remaining claims count; other runs may publish the forgotten keys again.

        Raises:
            RunFencedError: the run is OPEN or ABORTED, or another driver has taken it over.
            ClaimsExpiredError: the store may have forgotten claims.
            StoreReplacedError: the store does not know the run.
        """
        max_age_us = None if accept_loss else self._max_age_us
        change = RunChange(
            within=frozenset({RunState.PREPARED}),
            to=RunState.COMMITTED,
            epoch=ref.epoch,
            max_age_us=max_age_us,
            output_ref=output_ref,
        )
        self._change(ref, change, done=frozenset({RunState.COMMITTED}))

    def abort(self, ref: RunRef) -> None:
        """OPEN -> ABORTED: the claims do not count. No change if it was ABORTED.

        Raises:
            RunFencedError: the run is PREPARED or COMMITTED, so it may have published, or another driver has taken it
                over.
            StoreReplacedError: the store does not know the run.
        """
        change = RunChange(within=frozenset({RunState.OPEN}), to=RunState.ABORTED, epoch=ref.epoch)
        self._change(ref, change, done=frozenset({RunState.ABORTED}))

    def abort_lapsed(self, token: int) -> bool:
        """OPEN -> ABORTED iff its lease has ended by the store's clock; called by other runs.

        Returns whether this call aborted it.
        """
        change = RunChange(within=frozenset({RunState.OPEN}), to=RunState.ABORTED, only_lapsed=True)
        return self._change_run(token, change)

    def _change(
        self, ref: RunRef, change: RunChange, done: frozenset[RunState] = frozenset(), elsewhere: int = 0
    ) -> None:
        """Make the change, or raise the reason why not.

        Args:
            ref: the run.
            change: to make.
            done: states in which it has been made already.
            elsewhere: see `prepare`.
        """
        lost = None if change.max_age_us is None else self._lost(ref.token)
        if lost is None and self._change_run(ref.token, change):
            return
        row = self._find(ref)
        if row is None:
            raise unknown_run(ref, self.where)
        if row.ref.epoch != ref.epoch and row.state is not RunState.ABORTED:
            raise fenced(ref, row.standing)
        if row.state in done:
            return
        if row.state not in change.within:
            raise RunFencedError(f"{ref} is {row.state.name}" + _ADVICE.get(row.state, ""))
        if change.owned is not None and (owned := self._owned(ref)) != change.owned:
            raise UnpublishedClaimsError(
                f"{ref} has claimed {_counted(owned + elsewhere, 'key')}, and "
                f"{_counted(change.owned + elsewhere, 'row')} would be published. Publish all rows that `dedup` "
                "returns, one for each key, or say what happens to the other keys: see `stage`"
            )
        age_us = row.now_us - row.began_at_us
        if lost is None and (change.max_age_us is None or age_us <= change.max_age_us):
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
    def _standings(self, tokens: Collection[int]) -> Mapping[int, Standing]:
        """How far the runs are that the store knows."""

    @abstractmethod
    def _owned(self, ref: RunRef) -> int:
        """The number of OWNED claims that have the mark of this attempt."""

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

        After a change of state or epoch no claim is made on the condition that was true before. A change to COMMITTED
        or ABORTED stores its time.
        """

    def _lost(self, token: int) -> str | None:
        """Why the store may have lost claims of this run; None if it knows of no loss."""
        del token
        return None


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


_ADVICE: Final = {
    RunState.OPEN: ": prepare it first",
    RunState.PREPARED: ": it may have published, so it can only be committed",
    RunState.COMMITTED: ", which is final",
    RunState.ABORTED: ": its lease ended, or its driver aborted it. Begin it again, for the next generation",
}
