"""MemoryRunStore: the reference of what a store does in one step, in the memory of one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, repeat
from threading import RLock

from idempotent.adapters.spark.ledger.claims import ClaimState, Holder, Owner, PendingRow
from idempotent.adapters.spark.ledger.runs import (
    Collected,
    RunChange,
    RunRef,
    RunRow,
    RunState,
    this_driver,
)
from idempotent.adapters.spark.ledger.store import RunStore
from idempotent.checkers.base import DEFAULT_RETENTION_S


@dataclass(slots=True)
class _Run:
    row: RunRow
    retention_us: int
    expires_at_us: int | None = None


@dataclass(slots=True)
class _Claim:
    token: int
    state: ClaimState = ClaimState.OWNED
    fingerprint: bytes | None = None
    epoch: int = 0
    frame: int = 0
    attempt: bytes = b""
    lease_until_us: int = 0
    result: bytes | None = None

    @property
    def owner(self) -> Owner:
        return Owner(self.token, self.epoch, self.frame, self.fingerprint)


@dataclass(slots=True)
class Memory:
    """What several stores may share."""

    runs: dict[int, _Run] = field(default_factory=dict)
    claims: dict[bytes, _Claim] = field(default_factory=dict)
    lock: RLock = field(default_factory=RLock)


class MemoryRunStore(RunStore):
    """Runs and claims in dictionaries under one lock.

    Args:
        memory: shared with another store; None: a new one.
        retention_s: seconds that a claim is kept.
        clock: returns microseconds since 1970.
    """

    def __init__(
        self,
        memory: Memory | None = None,
        *,
        retention_s: float = DEFAULT_RETENTION_S,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        super().__init__("this process's memory", retention_s=retention_s)
        self.memory = memory or Memory()
        self._clock = clock

    def abandoned(self) -> list[int]:
        with self.memory.lock:
            now = self._clock()
            runs = [
                run
                for run in self.memory.runs.values()
                if run.row.state is RunState.OPEN and run.row.lease_until_us < now
            ]
            return [run.row.ref.token for run in runs if run.row.began_at_us + run.retention_us < now]

    def collect(self, limit: int) -> Collected:
        with self.memory.lock:
            now = self._clock()
            garbage = list(islice(self._garbage(now), limit))
            for key_hash in garbage:
                del self.memory.claims[key_hash]
            owning = {claim.token for claim in self.memory.claims.values()}
            runs = self.memory.runs.items()
            ended = [
                token for token, run in runs if run.expires_at_us is not None and run.expires_at_us < now
            ]
            empty = [token for token in ended if token not in owning]
            for token in empty:
                del self.memory.runs[token]
            return Collected(len(garbage), len(empty))

    def close(self) -> None:
        """Nothing to close."""

    def _garbage(self, now: int) -> list[bytes]:
        found = []
        for key_hash, claim in self.memory.claims.items():
            run = self.memory.runs[claim.token]
            if run.expires_at_us is None:
                continue
            is_void = run.row.state is RunState.ABORTED and claim.state is not ClaimState.DONE
            if is_void or run.expires_at_us < now:
                found.append(key_hash)
        return found

    def newest(self, consumer: str, run_id: str, run_hash: bytes | None = None) -> RunRow | None:
        assert run_hash is None, "only commands look for a run by its hash"
        with self.memory.lock:
            rows = [
                run.row
                for run in self.memory.runs.values()
                if (run.row.ref.consumer, run.row.ref.run_id) == (consumer, run_id)
            ]
            newest = max(rows, key=lambda row: row.ref.generation, default=None)
            return None if newest is None else replace(newest, now_us=self._clock())

    def find(self, ref: RunRef) -> RunRow | None:
        with self.memory.lock:
            run = self.memory.runs.get(ref.token)
            return None if run is None else replace(run.row, now_us=self._clock())

    def rows(self, tokens: Collection[int]) -> Mapping[int, RunRow]:
        with self.memory.lock:
            runs = self.memory.runs
            now = self._clock()
            return {token: replace(runs[token].row, now_us=now) for token in tokens if token in runs}

    def count_owned(self, ref: RunRef) -> int:
        with self.memory.lock:
            return self._marked(ref.token, ref.epoch)

    def _marked(self, token: int, epoch: int) -> int:
        return sum(
            (claim.token, claim.state, claim.epoch) == (token, ClaimState.OWNED, epoch)
            for claim in self.memory.claims.values()
        )

    def listed(self, states: Collection[RunState], consumer: str | None = None) -> Iterator[RunRow]:
        for run in list(self.memory.runs.values()):
            if run.row.state in states and consumer in (None, run.row.ref.consumer):
                yield replace(run.row, manifest=None, now_us=self._clock())

    def insert_run(self, ref: RunRef, newest: int | None, fingerprint: bytes | None, lease_us: int) -> None:
        del newest
        with self.memory.lock:
            there = self.newest(ref.consumer, ref.run_id)
            if there is None or there.ref.generation < ref.generation:
                now = self._clock()
                row = RunRow(
                    ref, RunState.OPEN, fingerprint, None, now + lease_us, now, now, driver=this_driver()
                )
                self.memory.runs[ref.token] = _Run(row, self.retention.us)

    def change_run(self, token: int, change: RunChange) -> bool:
        with self.memory.lock:
            run = self.memory.runs.get(token)
            now = self._clock()
            if run is None or not _holds(change, run.row, now, self._marked(token, run.row.ref.epoch)):
                return False
            run.row = _changed(run.row, change, now)
            if change.to is not None and change.to.is_final:
                run.expires_at_us = now + run.retention_us
            if change.resumes:
                run.retention_us = max(run.retention_us, self.retention.us)
            return True

    def _is_open(self, token: int, epoch: int) -> bool:
        run = self.memory.runs.get(token)
        return run is not None and run.row.state is RunState.OPEN and run.row.ref.epoch == epoch

    def insert_owned(
        self, owner: Owner, hashes: Sequence[bytes], fingerprints: Sequence[bytes | None] | None
    ) -> list[Owner | None]:
        with self.memory.lock:
            if self._is_open(owner.token, owner.mark):
                for key_hash, fingerprint in zip(hashes, fingerprints or repeat(None), strict=False):
                    self.memory.claims.setdefault(key_hash, _owned(owner, fingerprint))
            return self.read_owned(hashes)

    def read_owned(self, hashes: Sequence[bytes]) -> list[Owner | None]:
        with self.memory.lock:
            return [claim and claim.owner for claim in map(self.memory.claims.get, hashes)]

    def steal(self, owner: Owner, seen: Owner, keys: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        with self.memory.lock:
            mine = set()
            is_open = self._is_open(owner.token, owner.mark)
            for key_hash, fingerprint in keys:
                claim = self.memory.claims.get(key_hash)
                if claim and is_open and (claim.token, claim.epoch) == (seen.token, seen.mark):
                    self.memory.claims[key_hash] = claim = _owned(owner, fingerprint)
                if claim and claim.owner[:3] == owner[:3]:
                    mine.add(key_hash)
            return mine

    def insert_pending(self, holder: Holder, hashes: Sequence[bytes]) -> dict[bytes, PendingRow]:
        with self.memory.lock:
            now = self._clock()
            if self._is_open(holder.token, holder.epoch):
                for key_hash in hashes:
                    self.memory.claims.setdefault(key_hash, _pending(holder, now))
            rows = {}
            for key_hash in hashes:
                claim = self.memory.claims.get(key_hash)
                if claim:
                    rows[key_hash] = PendingRow(
                        key_hash,
                        claim.state,
                        claim.token,
                        claim.epoch,
                        claim.attempt,
                        claim.lease_until_us,
                        claim.result,
                        now,
                    )
            return rows

    def take_over(self, holder: Holder, seen: Sequence[PendingRow]) -> set[bytes]:
        with self.memory.lock:
            taken = set()
            for row in seen:
                claim = self.memory.claims.get(row.key_hash)
                if not claim or claim.state is not ClaimState.PENDING:
                    continue
                as_seen = (claim.attempt, claim.lease_until_us) == (row.attempt, row.lease_until_us)
                if as_seen and self._is_open(holder.token, holder.epoch):
                    self.memory.claims[row.key_hash] = claim = _pending(holder, self._clock())
                if claim.attempt == holder.attempt:
                    taken.add(row.key_hash)
            return taken

    def finish(self, holder: Holder, results: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        with self.memory.lock:
            mine = self._of(holder.attempt, [key_hash for key_hash, _ in results])
            for key_hash, result in results:
                if key_hash in mine:
                    claim = self.memory.claims[key_hash]
                    claim.state, claim.result = ClaimState.DONE, result
            return mine

    def renew_pending(self, holder: Holder, hashes: Sequence[bytes]) -> set[bytes]:
        with self.memory.lock:
            mine = {key for key in self._of(holder.attempt, hashes) if self._is_pending(key)}
            for key_hash in mine:
                self.memory.claims[key_hash].lease_until_us = self._clock() + holder.lease_us
            return mine

    def give_up(self, holder: Holder, hashes: Sequence[bytes]) -> None:
        with self.memory.lock:
            for key_hash in self._of(holder.attempt, hashes):
                if self._is_pending(key_hash):
                    del self.memory.claims[key_hash]

    def _of(self, attempt: bytes, hashes: Sequence[bytes]) -> set[bytes]:
        claims = self.memory.claims
        return {key_hash for key_hash in hashes if key_hash in claims and claims[key_hash].attempt == attempt}

    def _is_pending(self, key_hash: bytes) -> bool:
        return self.memory.claims[key_hash].state is ClaimState.PENDING


def _holds(change: RunChange, row: RunRow, now_us: int, owned: int) -> bool:
    """Whether all conditions hold for this row and number of claims at this time of the store's clock."""
    return (
        row.state in change.within
        and (change.epoch is None or row.ref.epoch == change.epoch)
        and (change.owned is None or owned == change.owned)
        and (change.max_age_us is None or now_us <= row.began_at_us + change.max_age_us)
        and (not change.only_lapsed or row.lease_until_us < now_us)
    )


def _changed(row: RunRow, change: RunChange, now_us: int) -> RunRow:
    """The row after the change."""
    return replace(
        row.at(row.ref.epoch + change.resumes),
        state=row.state if change.to is None else change.to,
        lease_until_us=row.lease_until_us if change.lease_us is None else now_us + change.lease_us,
        fingerprint=row.fingerprint if row.fingerprint is not None else change.fingerprint,
        output_ref=row.output_ref if change.output_ref is None else change.output_ref,
        prepared=row.ref.epoch if change.to is RunState.PREPARED else row.prepared,
        manifest=row.manifest if change.manifest is None else change.manifest,
        driver=this_driver() if change.resumes else row.driver,
    )


def _owned(owner: Owner, fingerprint: bytes | None) -> _Claim:
    return _Claim(owner.token, fingerprint=fingerprint, epoch=owner.mark, frame=owner.frame)


def _pending(holder: Holder, now: int) -> _Claim:
    return _Claim(
        holder.token,
        ClaimState.PENDING,
        epoch=holder.epoch,
        attempt=holder.attempt,
        lease_until_us=now + holder.lease_us,
    )
