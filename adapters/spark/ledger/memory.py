"""MemoryLedger: the reference implementation of the rules, in the memory of one process. For tests."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, repeat
from threading import RLock

from idempotent.adapters.spark.ledger.base import Ledger
from idempotent.adapters.spark.ledger.claims import ClaimState, Owner, Owners, PendingRow
from idempotent.adapters.spark.ledger.holding import Holder
from idempotent.adapters.spark.ledger.runs import RunChange, RunRef, RunRow, RunState, Standing
from idempotent.checkers.base import DEFAULT_RETENTION_S
from idempotent.forks import free_in_child


@dataclass(slots=True)
class _Run:
    row: RunRow
    ended_at_us: int | None = None


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
class _Store:
    runs: dict[int, _Run] = field(default_factory=dict)
    claims: dict[bytes, _Claim] = field(default_factory=dict)
    lock: RLock = field(default_factory=lambda: free_in_child(RLock()))


class MemoryLedger(Ledger):
    """Runs and claims in dictionaries under one lock.

    Args:
        retention_s: seconds that a claim is kept.
        clock: returns microseconds since 1970.
    """

    def __init__(
        self,
        *,
        retention_s: float = DEFAULT_RETENTION_S,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """Start empty."""
        super().__init__("this process's memory", retention_s=retention_s)
        self._clock = clock
        self._store = _Store()

    def counts(self, ref: RunRef) -> dict[ClaimState, int]:
        with self._store.lock:
            counted = Counter(
                claim.state for claim in self._store.claims.values() if claim.token == ref.token
            )
        return {state: counted[state] for state in ClaimState}

    def gc(self, limit: int = 10_000) -> int:
        with self._store.lock:
            before = self._clock() - self._retention_us
            for run in self._store.runs.values():
                row = run.row
                if row.state is RunState.OPEN and row.began_at_us < before:
                    self.abort_lapsed(row.ref.token)
            garbage = list(islice(self._garbage(before), limit))
            for key_hash in garbage:
                del self._store.claims[key_hash]
            owning = {claim.token for claim in self._store.claims.values()}
            for token, run in list(self._store.runs.items()):
                if run.ended_at_us is not None and run.ended_at_us < before and token not in owning:
                    del self._store.runs[token]
            return len(garbage)

    def close(self) -> None:
        """Nothing to close."""

    def _garbage(self, before: int) -> list[bytes]:
        found = []
        for key_hash, claim in self._store.claims.items():
            run = self._store.runs[claim.token]
            if run.ended_at_us is None:
                continue
            is_void = run.row.state is RunState.ABORTED and claim.state is not ClaimState.DONE
            if is_void or run.ended_at_us < before:
                found.append(key_hash)
        return found

    def _newest(self, consumer: str, run_id: str) -> RunRow | None:
        with self._store.lock:
            rows = [
                run.row
                for run in self._store.runs.values()
                if (run.row.ref.consumer, run.row.ref.run_id) == (consumer, run_id)
            ]
            newest = max(rows, key=lambda row: row.ref.generation, default=None)
            return None if newest is None else replace(newest, now_us=self._clock())

    def _find(self, ref: RunRef) -> RunRow | None:
        with self._store.lock:
            run = self._store.runs.get(ref.token)
            return None if run is None else replace(run.row, now_us=self._clock())

    def _standings(self, tokens: Collection[int]) -> Mapping[int, Standing]:
        with self._store.lock:
            runs = self._store.runs
            return {token: runs[token].row.standing for token in tokens if token in runs}

    def _owned(self, ref: RunRef) -> int:
        with self._store.lock:
            return self._marked(ref.token, ref.epoch)

    def _marked(self, token: int, epoch: int) -> int:
        return sum(
            (claim.token, claim.state, claim.epoch) == (token, ClaimState.OWNED, epoch)
            for claim in self._store.claims.values()
        )

    def _insert_run(self, ref: RunRef, newest: int | None, fingerprint: bytes | None, lease_us: int) -> None:
        del newest
        with self._store.lock:
            there = self._newest(ref.consumer, ref.run_id)
            if there is None or there.ref.generation < ref.generation:
                now = self._clock()
                row = RunRow(ref, RunState.OPEN, fingerprint, None, now + lease_us, now, now)
                self._store.runs[ref.token] = _Run(row)

    def _change_run(self, token: int, change: RunChange) -> bool:
        with self._store.lock:
            run = self._store.runs.get(token)
            now = self._clock()
            if run is None or not change.holds(run.row, now, self._marked(token, run.row.ref.epoch)):
                return False
            run.row = change.applied(run.row, now)
            if change.to is not None and change.to.is_final:
                run.ended_at_us = now
            return True

    def _is_open(self, token: int, epoch: int) -> bool:
        run = self._store.runs.get(token)
        return run is not None and run.row.state is RunState.OPEN and run.row.ref.epoch == epoch

    def _insert_owned(
        self, owner: Owner, hashes: Sequence[bytes], fingerprints: Sequence[bytes | None] | None
    ) -> Owners:
        with self._store.lock:
            if self._is_open(owner.token, owner.mark):
                for key_hash, fingerprint in zip(hashes, fingerprints or repeat(None), strict=False):
                    self._store.claims.setdefault(key_hash, _owned(owner, fingerprint))
            return self._read_owned(hashes)

    def _read_owned(self, hashes: Sequence[bytes]) -> Owners:
        with self._store.lock:
            claims = {key_hash: self._store.claims.get(key_hash) for key_hash in hashes}
            found = {key: claim.owner for key, claim in claims.items() if claim}
            return Owners.of(hashes, found)

    def _steal(self, owner: Owner, seen: Owner, keys: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        with self._store.lock:
            mine = set()
            is_open = self._is_open(owner.token, owner.mark)
            for key_hash, fingerprint in keys:
                claim = self._store.claims.get(key_hash)
                if claim and is_open and (claim.token, claim.epoch) == (seen.token, seen.mark):
                    self._store.claims[key_hash] = claim = _owned(owner, fingerprint)
                if claim and claim.owner[:3] == owner[:3]:
                    mine.add(key_hash)
            return mine

    def _insert_pending(self, holder: Holder, hashes: Sequence[bytes]) -> dict[bytes, PendingRow]:
        with self._store.lock:
            now = self._clock()
            if self._is_open(holder.token, holder.epoch):
                for key_hash in hashes:
                    self._store.claims.setdefault(key_hash, _pending(holder, now))
            rows = {}
            for key_hash in hashes:
                claim = self._store.claims.get(key_hash)
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

    def _take_over(self, holder: Holder, seen: Sequence[PendingRow]) -> set[bytes]:
        with self._store.lock:
            taken = set()
            for row in seen:
                claim = self._store.claims.get(row.key_hash)
                if not claim or claim.state is not ClaimState.PENDING:
                    continue
                as_seen = (claim.attempt, claim.lease_until_us) == (row.attempt, row.lease_until_us)
                if as_seen and self._is_open(holder.token, holder.epoch):
                    self._store.claims[row.key_hash] = claim = _pending(holder, self._clock())
                if claim.attempt == holder.attempt:
                    taken.add(row.key_hash)
            return taken

    def _finish(self, attempt: bytes, results: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        with self._store.lock:
            mine = self._of(attempt, [key_hash for key_hash, _ in results])
            for key_hash, result in results:
                if key_hash in mine:
                    claim = self._store.claims[key_hash]
                    claim.state, claim.result = ClaimState.DONE, result
            return mine

    def _renew_pending(self, attempt: bytes, hashes: Sequence[bytes], lease_us: int) -> set[bytes]:
        with self._store.lock:
            mine = {key for key in self._of(attempt, hashes) if self._is_pending(key)}
            for key_hash in mine:
                self._store.claims[key_hash].lease_until_us = self._clock() + lease_us
            return mine

    def _give_up(self, attempt: bytes, hashes: Sequence[bytes]) -> None:
        with self._store.lock:
            for key_hash in self._of(attempt, hashes):
                if self._is_pending(key_hash):
                    del self._store.claims[key_hash]

    def _of(self, attempt: bytes, hashes: Sequence[bytes]) -> set[bytes]:
        claims = self._store.claims
        return {key_hash for key_hash in hashes if key_hash in claims and claims[key_hash].attempt == attempt}

    def _is_pending(self, key_hash: bytes) -> bool:
        return self._store.claims[key_hash].state is ClaimState.PENDING


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
