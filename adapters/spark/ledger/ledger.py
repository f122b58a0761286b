"""RunLedger: the rules of runs and of the keys that they own, over the atomic steps of a `RunStore`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import repeat
from typing import Final, Self

from idempotent.adapters.spark.ledger.claims import Owner, check, in_parts
from idempotent.adapters.spark.ledger.refusals import (
    another_driver,
    expired,
    fenced,
    held_by_transaction,
    require_same_input,
    unknown_run,
    unpublished,
    wrong_state,
)
from idempotent.adapters.spark.ledger.runs import (
    Collected,
    RunChange,
    RunRef,
    RunRow,
    RunState,
    next_ref,
    this_driver,
)
from idempotent.adapters.spark.ledger.store import RunStore
from idempotent.adapters.spark.ledger.waits import Patience
from idempotent.errors import ConfigurationError, RunConflictError, StoreBusyError
from idempotent.logs import EventLog

log = EventLog(__name__)

_ROUNDS: Final = 20
_MAX_FINGERPRINT: Final = 64
_POLL_S: Final = 0.5
_TICK_S: Final = 0.001
_UNFINISHED: Final = frozenset({RunState.OPEN, RunState.PREPARED})
ENDED_US: Final = -1
"""For how long a lease lives that ends now."""
LOCK_S: Final = 1
"""How long those wait for a run's row who are not its driver: the process whose transaction has it may be paused."""
# A driver that takes over keeps its place in the queue for longer, or handlers that live would always be before it.
_RESUME_LOCK_S: Final = 10


class RunLedger:
    """The runs of one store, and the keys that they own. Safe for threads; survives a fork.

    Every method raises StoreError when the store failed or did not answer; an error is never a verdict.

    Args:
        store: of the runs and claims. `open_ledger` makes one from a `StoreConfig`.
        sleep: waits for a number of seconds; replaced in tests.
        monotonic: a clock in seconds; replaced in tests.
    """

    def __init__(
        self,
        store: RunStore,
        *,
        sleep: Callable[[float], object] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send nothing to the store yet."""
        self.store: Final = store
        self._sleep = sleep
        self._monotonic = monotonic

    def patience(self, wait_s: float) -> Patience:
        """For the waits of one call."""
        return Patience(wait_s, sleep=self._sleep, monotonic=self._monotonic)

    # Runs: one driver at a time has one, for as long as it renews its lease

    def begin(
        self,
        consumer: str,
        run_id: str,
        *,
        fingerprint: bytes | None = None,
        lease_s: float,
        wait_s: float = 0.0,
        takeover: bool = False,
    ) -> RunRow:
        """Begin a run, or resume it where a crash left it. One driver at a time has it.

        The newest generation is resumed if it is OPEN or PREPARED and its lease has ended: the lease is renewed, and
        its epoch grows by 1, which fences every earlier driver. A COMMITTED one is returned as it is. If the run is
        new, or ABORTED, the next generation is begun, OPEN, with epoch 1.

        Args:
            consumer: the consumer that claims the keys.
            run_id: names the unit of work.
            fingerprint: of the input, 1 to 64 bytes; None: not compared.
            lease_s: seconds during which other drivers and other runs cannot take it; at most a tenth of the retention.
            wait_s: seconds to wait for the end of another driver's lease.
            takeover: resume the run although another driver's lease has not ended.

        Returns:
            The row, with the epoch of this attempt; of a COMMITTED run, the epoch that was prepared.

        Raises:
            RunConflictError: another driver has the run, and did not end within `wait_s`.
            RunInputChangedError: the run was begun with another fingerprint.
            ConfigurationError: a fingerprint or a lease of an invalid length.
            StoreBusyError: other drivers begin and abort the run all the time.
        """
        lease_us = self.store.retention.lease_us(lease_s)
        if fingerprint is not None and not 0 < len(fingerprint) <= _MAX_FINGERPRINT:
            raise ConfigurationError(
                f"a fingerprint has 1 to {_MAX_FINGERPRINT} bytes, not {len(fingerprint)}"
            )
        rounds, patience = 0, self.patience(wait_s)
        while rounds < _ROUNDS:
            newest = self.store.newest(consumer, run_id)
            if newest is not None:
                require_same_input(newest, fingerprint)
            if newest is None or newest.state is RunState.ABORTED:
                row = self._begin_next(next_ref(consumer, run_id, newest), newest, fingerprint, lease_us)
            elif newest.state is RunState.COMMITTED:
                row = newest.at(newest.prepared)
            else:
                found = self._resume(newest, fingerprint, lease_us, takeover=takeover)
                if isinstance(found, RunConflictError):
                    # Not past the end of the lease. If that has come, a transaction has the row.
                    at_most_s = _POLL_S if newest.lapsed else min(newest.lease_rest_s + _TICK_S, _POLL_S)
                    if not patience.wait(newest.ref, partial(str, found), at_most_s):
                        raise found
                    continue
                row = found
            if row is not None:
                patience.over(row.ref)
                _say_begun(row, newest)
                return row
            rounds += 1
        raise StoreBusyError(
            f"run {run_id!r} of consumer {consumer!r} was begun or aborted by others in each of {_ROUNDS} rounds. "
            "Try again"
        )

    def row(self, token: int) -> RunRow:
        """The run of this token; UNKNOWN if the store does not know it."""
        return self.rows([token])[token]

    def rows(self, tokens: Collection[int]) -> dict[int, RunRow]:
        """The run of each of these tokens, without manifest; UNKNOWN for a token that the store does not know."""
        if not tokens:
            return {}
        found = self.store.rows(sorted(set(tokens)))
        return {token: found.get(token) or RunRow.unknown(token) for token in tokens}

    def renew(self, ref: RunRef, lease_s: float) -> None:
        """Let the lease of a run end `lease_s` seconds from now. No change if it was COMMITTED.

        Raises:
            RunFencedError: the run was aborted, or another driver has taken it over.
            StoreReplacedError: the store does not know the run.
        """
        change = RunChange(_UNFINISHED, lease_us=self.store.retention.lease_us(lease_s), epoch=ref.epoch)
        self._change(ref, change, done=frozenset({RunState.COMMITTED}))

    def end_lease(self, ref: RunRef) -> None:
        """Let the lease end now, if this attempt has it: the next driver need not wait."""
        self.store.change_run(
            ref.token, RunChange(_UNFINISHED, lease_us=ENDED_US, epoch=ref.epoch, lock_s=LOCK_S)
        )

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
            max_age_us=self.store.retention.max_age_us,
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
        change = RunChange(
            within=frozenset({RunState.PREPARED}),
            to=RunState.COMMITTED,
            epoch=ref.epoch,
            max_age_us=None if accept_loss else self.store.retention.max_age_us,
            output_ref=output_ref,
        )
        self._change(ref, change, done=frozenset({RunState.COMMITTED}))

    def abort(self, ref: RunRef, *, unpublished: bool = False) -> None:
        """OPEN -> ABORTED: the claims do not count. No change if it was ABORTED.

        Args:
            ref: the run.
            unpublished: abort a PREPARED run too: the caller knows that nothing is published, and no driver publishing.

        Raises:
            RunFencedError: the run is COMMITTED, or PREPARED without `unpublished`, or another driver has it now.
            StoreReplacedError: the store does not know the run.
        """
        within = _UNFINISHED if unpublished else frozenset({RunState.OPEN})
        change = RunChange(within, to=RunState.ABORTED, epoch=ref.epoch)
        self._change(ref, change, done=frozenset({RunState.ABORTED}))

    def abort_lapsed(self, token: int) -> bool:
        """OPEN -> ABORTED iff its lease has ended by the store's clock, and no transaction of its handlers is open."""
        within = frozenset({RunState.OPEN})
        change = RunChange(within, to=RunState.ABORTED, only_lapsed=True, lock_s=LOCK_S)
        try:
            return self.store.change_run(token, change)
        except StoreBusyError:
            return False

    def abort_other(self, token: int, other: RunRow, by: RunRef) -> bool:
        """`abort_lapsed`, of another run of the consumer, for a run that meets its keys."""
        aborted = self.abort_lapsed(token)
        if aborted:
            name = f"run {other.ref.run_id!r} of consumer {by.consumer!r}"
            log.warning("run_aborted", extra={"run": name, "by": str(by)})
        return aborted

    # Mode dedup: which run owns a key. Whether a claim counts depends on its run: see RunState

    def claim(
        self,
        ref: RunRef,
        hashes: Sequence[bytes],
        *,
        insert: bool = True,
        frame: int = 0,
        fingerprints: Sequence[bytes | None] | None = None,
    ) -> list[Owner | None]:
        """Claim the keys that have no owner, and return the owners of all.

        The store inserts only while the run is OPEN and this attempt the newest, checked in the same atomic step. May
        be repeated. One round trip for 1,000 keys (PostgreSQL, SQLite: a second one if some were not new; MySQL: two).

        Args:
            ref: the claiming run.
            hashes: of the keys, 20 bytes each, in any order, all different.
            insert: False reads the owners and claims no key.
            frame: the number of the frame whose rows have the keys.
            fingerprints: of the payloads, 8 bytes each or None, aligned with the hashes; stored with new claims.

        Returns:
            The owners, aligned with the hashes. None: no owner, because `insert` is False, the run is not OPEN or this
            attempt not the newest.
        """
        check(hashes, fingerprints)
        owners: list[Owner | None] = []
        given = repeat(None) if fingerprints is None else in_parts(fingerprints)
        for part, payloads in zip(in_parts(hashes), given, strict=False):
            if insert:
                owners += self.store.insert_owned(Owner(ref.token, ref.epoch, frame), part, payloads)
            else:
                owners += self.store.read_owned(part)
        return owners

    def steal(
        self,
        ref: RunRef,
        seen: Owner,
        hashes: Sequence[bytes],
        *,
        frame: int = 0,
        fingerprints: Sequence[bytes | None] | None = None,
    ) -> set[bytes]:
        """Take keys over whose claims can never count: of an ABORTED run, or of an attempt that was not PREPARED.

        Each key changes by a compare-and-set on its owner's token and mark, and only while `ref` is OPEN and its
        attempt the newest. May be repeated.

        Args:
            ref: the run that takes the keys.
            seen: the owner, as the caller has seen it.
            hashes: of the keys, all different.
            frame: as in `claim`.
            fingerprints: as in `claim`; they replace the stored ones.

        Returns:
            The hashes that this attempt and frame own now; ask for the owners of the others again.
        """
        check(hashes, fingerprints)
        stolen: set[bytes] = set()
        # Sorted: two batches lock their common keys in the same order.
        for part in in_parts(sorted(zip(hashes, fingerprints or repeat(None, len(hashes)), strict=True))):
            stolen |= self.store.steal(Owner(ref.token, ref.epoch, frame), seen, part)
        return stolen

    # Upkeep

    def collect(self, limit: int = 10_000) -> Collected:
        """Delete claims and runs that are no longer needed, in bounded batches.

        The retention of a run is the longest of the drivers that began it, whatever that of this ledger is.

        - Claims of ABORTED runs; those that are DONE only after the retention, because their effect has happened.
        - Claims of COMMITTED runs, a retention after the commit; runs without claims, a retention after their end.
        - OPEN runs that began a retention ago and whose lease has ended are aborted: they can no longer be prepared.

        Claims of OPEN and PREPARED runs stay. In Redis keys expire, and this does nothing.

        Args:
            limit: the most claims to delete.
        """
        aborted = sum(map(self.abort_lapsed, self.store.abandoned()))
        return self.store.collect(limit)._replace(aborted=aborted)

    def close(self) -> None:
        """Close connections. The next call opens new ones."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # How

    def _begin_next(
        self, ref: RunRef, newest: RunRow | None, fingerprint: bytes | None, lease_us: int
    ) -> RunRow | None:
        self.store.insert_run(ref, None if newest is None else newest.ref.token, fingerprint, lease_us)
        return self._as_begun(ref)

    def _resume(
        self, row: RunRow, fingerprint: bytes | None, lease_us: int, *, takeover: bool
    ) -> RunRow | RunConflictError | None:
        """The row of the next attempt, or why that has to wait; None: others have changed the run meanwhile."""
        if not row.lapsed and not takeover:
            return another_driver(row)
        change = RunChange(
            _UNFINISHED,
            lease_us=lease_us,
            epoch=row.ref.epoch,
            resumes=True,
            only_lapsed=not takeover,
            fingerprint=fingerprint,
            lock_s=_RESUME_LOCK_S,
        )
        try:
            resumed = self.store.change_run(row.ref.token, change)
        except StoreBusyError as busy:
            return held_by_transaction(row, busy)
        return self._as_begun(row.at(row.ref.epoch + 1).ref) if resumed else None

    def _as_begun(self, ref: RunRef) -> RunRow | None:
        """The row of this attempt, even if another driver has resumed the run since; None: another run is newer."""
        row = self.store.newest(ref.consumer, ref.run_id)
        return row.at(ref.epoch) if row is not None and row.ref.token == ref.token else None

    def _change(self, ref: RunRef, change: RunChange, done: frozenset[RunState], elsewhere: int = 0) -> None:
        """Make the change, or raise the reason why not.

        Args:
            ref: the run.
            change: to make.
            done: states in which it has been made already.
            elsewhere: see `prepare`.
        """
        lost = None if change.max_age_us is None else self.store.lost(ref.token)
        if lost is None and self.store.change_run(ref.token, change):
            rows = None if change.owned is None else change.owned + elsewhere
            _say_changed(ref, change.to, rows)
            return
        row = self.store.find(ref)
        if row is None:
            raise unknown_run(ref, self.store.where)
        if change.to is None and row.state in done and ref.epoch == row.prepared:
            return  # a COMMITTED run needs no lease, and `begin` names its prepared attempt, not the newest
        if row.ref.epoch != ref.epoch and row.state is not RunState.ABORTED:
            raise fenced(ref, row)
        if change.max_age_us is not None and row.now_us - row.began_at_us > change.max_age_us:
            lost = lost or f"the run began too long ago for a retention of {self.store.retention.seconds:g} s"
        # A run that is PREPARED already must not be published either, if it cannot be committed afterwards.
        if row.state in done and (lost is None or row.state is RunState.COMMITTED):
            return
        if row.state not in change.within | done:
            raise wrong_state(ref, row.state)
        if lost is not None:
            raise expired(ref, row.state, lost)
        if change.owned is not None and (owned := self.store.count_owned(ref)) != change.owned:
            raise unpublished(ref, keys=owned + elsewhere, rows=change.owned + elsewhere)
        raise StoreBusyError(f"another driver changed {ref} at the same time. Try again")


def _say_begun(row: RunRow, newest: RunRow | None) -> None:
    """What a driver has found, and the driver that had the run before."""
    if row.state is RunState.COMMITTED:
        log.info("run_already_committed", extra={"run": str(row.ref)})
        return
    before = newest.holder if newest is not None and newest.ref.token == row.ref.token else None
    log.info("run_begun", extra={"run": str(row.ref), "state": row.state.name, "before": before})


def _say_changed(ref: RunRef, to: RunState | None, rows: int | None) -> None:
    """What a driver has done with its run."""
    if to is RunState.PREPARED:
        log.info("run_prepared", extra={"run": str(ref), "rows": rows})
    elif to is RunState.COMMITTED:
        log.info("run_committed", extra={"run": str(ref)})
    elif to is RunState.ABORTED:
        log.info("run_aborted", extra={"run": str(ref), "by": f"driver {this_driver()}"})
