"""MemoryChecker: the reference implementation, in one dict under one lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from idempotent.admin import KeyAdmin
from idempotent.checkers.base import (
    DEFAULT_LEASE_S,
    DEFAULT_RETENTION_S,
    UNKNOWN_EFFECT,
    AbstractIdempotentChecker,
)
from idempotent.checkers.memory.admin import MemoryKeyAdmin
from idempotent.claims import (
    Claim,
    ClaimRequest,
    Completion,
    Decision,
    Failure,
    KeyStatus,
    Lapsed,
    Released,
    Verdict,
)
from idempotent.errors import ConfigurationError, StoreError
from idempotent.keys import Key
from idempotent.values import changed

DEFAULT_MAX_KEYS: Final = 1_000_000


@dataclass(slots=True)
class Entry:
    """One stored key. Times are seconds of the checker's clock."""

    key: Key
    status: KeyStatus
    owner: bytes
    fence: int
    lease_until: float
    fingerprint: bytes | None
    update_at: float
    expires_at: float
    result: bytes | None = None


@dataclass(slots=True)
class Attempts:
    """How often a key's handler has failed, and with what."""

    count: int
    error: str
    expires_at: float = 0.0


class MemoryChecker(AbstractIdempotentChecker):
    """Keys in this process's memory: for tests, demos and effects that die with the process.

    Args:
        lease_s: seconds a claim lasts without renewal; None: for ever.
        retention_s: seconds a key is remembered, counted from its claim.
        max_keys: the most keys remembered; beyond it the oldest hundredth of them is forgotten early, as far as it is
            finished.
        clock: seconds since the epoch; injectable for tests.

    Raises:
        ConfigurationError: a duration or `max_keys` is not positive.
    """

    def __init__(
        self,
        *,
        lease_s: float | None = DEFAULT_LEASE_S,
        retention_s: float = DEFAULT_RETENTION_S,
        max_keys: int = DEFAULT_MAX_KEYS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Start empty."""
        if max_keys < 1:
            raise ConfigurationError(f"max_keys must be positive, not {max_keys}")
        super().__init__(lease_s=lease_s, retention_s=retention_s)
        self.max_keys: Final = max_keys
        self._clock = clock
        self._lock = threading.Lock()
        self.entries: Final[dict[bytes, Entry]] = {}
        self.attempts: Final[dict[bytes, Attempts]] = {}
        self._last_fence = 0

    def admin(self) -> KeyAdmin:
        """Look at the keys, and decide about those that wait for a person."""
        return MemoryKeyAdmin(self.entries, self.attempts, self._lock, self._clock)

    def _claim(self, request: ClaimRequest) -> Decision:
        with self._lock:
            entry = self.entries.get(request.key.hash)
            if entry is None:
                return self._insert(request)
            return self._judge(request, entry)

    def _complete(self, completion: Completion) -> bool:
        with self._lock:
            entry = self._mine(completion.claim)
            if entry is None:
                return False
            entry.status = KeyStatus.DONE
            entry.update_at = self._clock()
            if completion.result is not None:
                entry.result = completion.result
            return True

    def _release(self, claim: Claim, failure: Failure | None) -> Released:
        with self._lock:
            entry = self._mine(claim)
            if entry is None or not entry.status.in_progress:
                return Released(owned=False)
            if failure is None:
                del self.entries[entry.key.hash]
                return Released(owned=True)
            noted = self._note(entry.key, failure.error)
            noted.count += 1
            dead = failure.kills(noted.count)
            if dead:
                entry.status = KeyStatus.DEAD
            elif not failure.keep_claim:
                del self.entries[entry.key.hash]
            return Released(owned=True, attempts=noted.count, dead=dead)

    def _renew_many(self, claims: Sequence[Claim]) -> list[bool]:
        with self._lock:
            return [self._renew(claim) for claim in claims]

    def _garbage_collect(self, limit: int) -> int:
        with self._lock:
            now = self._clock()
            expired = [hashed for hashed, entry in self.entries.items() if self._is_garbage(entry, now)]
            for hashed in expired[:limit]:
                self._forget(hashed)
            for hashed in [h for h, noted in self.attempts.items() if noted.expires_at < now]:
                if hashed not in self.entries:
                    del self.attempts[hashed]
            return len(expired[:limit])

    def _insert(self, request: ClaimRequest) -> Decision:
        if len(self.entries) >= self.max_keys:
            self._make_room()
        now = self._clock()
        # A clock that stands still or goes back must not repeat a fence.
        self._last_fence = fence = max(int(now * 1_000_000), self._last_fence + 1)
        self.entries[request.key.hash] = Entry(
            key=request.key,
            status=request.status,
            owner=request.owner,
            fence=fence,
            lease_until=self._lease_end(now),
            fingerprint=request.fingerprint,
            update_at=now,
            expires_at=now + self.retention_s,
        )
        return Decision(Verdict.ACQUIRED, Claim(request.key, fence, request.owner))

    def _judge(self, request: ClaimRequest, entry: Entry) -> Decision:
        if entry.owner == request.owner:
            return Decision(Verdict.ACQUIRED, Claim(request.key, entry.fence, entry.owner))
        if entry.status is KeyStatus.DONE:
            return Decision(Verdict.DUPLICATE, result=entry.result, fingerprint=entry.fingerprint)
        if entry.status is KeyStatus.DEAD:
            return Decision(Verdict.DEAD, reason=self._reason(request.key), fingerprint=entry.fingerprint)
        now = self._clock()
        waiting = Decision(
            Verdict.IN_PROGRESS, retry_after_s=entry.lease_until - now, fingerprint=entry.fingerprint
        )
        if entry.lease_until >= now:
            return waiting
        other_content = (
            None not in (request.fingerprint, entry.fingerprint) and request.fingerprint != entry.fingerprint
        )
        if request.on_lapsed is Lapsed.LEAVE or other_content:
            return changed(waiting, retry_after_s=0.0, lapsed=True)
        entry.update_at = now
        if request.on_lapsed is Lapsed.PARK:
            entry.status = KeyStatus.DEAD
            self._note(request.key, UNKNOWN_EFFECT)
            return Decision(Verdict.DEAD, reason=UNKNOWN_EFFECT)
        was_alone = entry.status is not KeyStatus.IN_PROGRESS_GROUP
        entry.owner, entry.status, entry.fingerprint = request.owner, request.status, request.fingerprint
        self._last_fence = entry.fence = max(entry.fence, self._last_fence) + 1
        entry.lease_until, entry.expires_at = self._lease_end(now), now + self.retention_s
        claim = Claim(request.key, entry.fence, request.owner)
        return Decision(Verdict.ACQUIRED, claim, lapsed=True, alone=was_alone)

    def _renew(self, claim: Claim) -> bool:
        entry = self._mine(claim)
        if entry is None or not entry.status.in_progress:
            return False
        entry.lease_until = self._lease_end(self._clock())
        return True

    def _mine(self, claim: Claim) -> Entry | None:
        entry = self.entries.get(claim.key.hash) if claim.key else None
        return entry if entry and entry.owner == claim.owner else None

    def _lease_end(self, now: float) -> float:
        return float("inf") if self.lease_s is None else now + self.lease_s

    def _note(self, key: Key, error: str) -> Attempts:
        noted = self.attempts.setdefault(key.hash, Attempts(0, ""))
        if len(self.attempts) > self.max_keys:
            # The oldest of keys that are gone; that of a key which is here says why it is dead.
            gone = (hashed for hashed in self.attempts if hashed not in self.entries and hashed != key.hash)
            for hashed in self._some(gone):
                del self.attempts[hashed]
        noted.error = error
        noted.expires_at = self._clock() + self.retention_s
        return noted

    def _reason(self, key: Key) -> str | None:
        noted = self.attempts.get(key.hash)
        return noted.error if noted else None

    @staticmethod
    def _is_garbage(entry: Entry, now: float) -> bool:
        if entry.expires_at >= now or entry.status is KeyStatus.IN_PROGRESS_PARK:
            return False
        return not (entry.status.in_progress and entry.lease_until >= now)

    def _make_room(self) -> None:
        # A dict keeps insertion order, so the first finished keys are the oldest.
        finished = (hashed for hashed, entry in self.entries.items() if not entry.status.in_progress)
        oldest = self._some(finished)
        if not oldest:
            raise StoreError(f"MemoryChecker is full: {self.max_keys} keys in progress; raise max_keys")
        for hashed in oldest:
            self._forget(hashed)

    def _some(self, hashes: Iterable[bytes]) -> list[bytes]:
        """The first ones, a hundredth of what may be kept: a dict walks over the places of those already gone."""
        return list(islice(hashes, max(self.max_keys // 100, 1)))

    def _forget(self, hashed: bytes) -> None:
        del self.entries[hashed]
        self.attempts.pop(hashed, None)
