"""MemoryChecker and AttemptChecker: keys in one dict of this process, the reference implementation for every store."""

from __future__ import annotations

import builtins
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from typing import Final

from idempotent.admin import KeyAdmin, KeyFilter, KeyRecord, KeyStats, counted
from idempotent.checkers.awaiting import Awaiting, InLoop
from idempotent.checkers.base import DEFAULT_LEASE_S, DEFAULT_RETENTION_S, AbstractIdempotentChecker
from idempotent.checkers.judging import Change, StoredKey, done_expiry, judge, known
from idempotent.claims import (
    NOBODY,
    UNKNOWN_EFFECT,
    Claim,
    ClaimRequest,
    Completion,
    Decision,
    Failure,
    KeyStatus,
    Released,
    Remembers,
    Verdict,
)
from idempotent.errors import StoreError
from idempotent.forks import free_in_child
from idempotent.keys import Key
from idempotent.validation import function, whole

DEFAULT_MAX_KEYS: Final = 1_000_000
# Python 3.11 takes as long to look up an enum's member as to create a small object.
_ACQUIRED: Final = Verdict.ACQUIRED
_DONE: Final = KeyStatus.DONE
_DEAD: Final = KeyStatus.DEAD
_PARK: Final = Change.PARK
_STORE: Final = Change.STORE


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
    deaths: int = 0
    """How many lapsed claims in a row were taken over."""


@dataclass(slots=True)
class Attempts:
    """The number of times that a key's handler has failed, and the last error."""

    count: int
    error: str
    expires_at: float = 0.0


# Of the checkers that were asked for their names.
_numbers: Final = count(1)


class MemoryBacked(AbstractIdempotentChecker):
    """Keys, and the attempts of those that failed, in dicts under one lock; the subclass defines completion.

    `MemoryChecker` documents the arguments.
    """

    is_shared = False

    def __init__(
        self,
        *,
        lease_s: float | None = DEFAULT_LEASE_S,
        retention_s: float = DEFAULT_RETENTION_S,
        dead_retention_s: float | None = None,
        max_keys: int = DEFAULT_MAX_KEYS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(lease_s=lease_s, retention_s=retention_s, dead_retention_s=dead_retention_s)
        self._lapses_after_s = math.inf if lease_s is None else lease_s
        self._dead_for_s = math.inf if dead_retention_s is None else dead_retention_s
        self._max_keys = whole(max_keys, "max_keys")
        self.clock: Final = function(clock, "clock", "time.time", takes=0)
        self.lock: Final = free_in_child(threading.Lock())
        self.entries: Final[dict[bytes, Entry]] = {}
        self.attempts: Final[dict[bytes, Attempts]] = {}
        self._last_fence = 0

    @cached_property
    def awaiting(self) -> Awaiting:
        return InLoop(self.protocol)

    @cached_property
    def store_name(self) -> str:
        return f"memory {next(_numbers)}"

    def admin(self) -> KeyAdmin:
        return MemoryKeyAdmin(self)

    def _claim(self, request: ClaimRequest) -> Decision:
        with self.lock:
            entry = self.entries.get(request.key.hash)
            if entry is None:
                return self._insert(request)
            now = self.clock()
            stored = self._stored(entry, now)
            if stored.free:
                del self.entries[request.key.hash]
                decision = self._insert(request)
                noted = self.attempts.get(request.key.hash)
                return known(decision, request, noted.count if noted else 0)
            judged = judge(stored, request)
            if judged.change is _PARK:
                self._kill(entry)
                self._note(request.key, UNKNOWN_EFFECT)
            elif judged.change is _STORE:
                entry.owner, entry.status = request.owner, request.status
                entry.fence, entry.fingerprint = judged.claim.fence, request.fingerprint
                entry.lease_until, entry.expires_at = now + self._lapses_after_s, now + self.retention_s
                entry.update_at, entry.deaths = now, judged.claim.deaths
                self._last_fence = max(self._last_fence, entry.fence)
            return judged.decision

    def finish(self, entry: Entry) -> None:
        """Make a key DONE. The caller holds the lock."""
        entry.update_at = now = self.clock()
        entry.expires_at = done_expiry(entry.status, entry.expires_at, now, self.retention_s)
        entry.status = _DONE

    def _kill(self, entry: Entry) -> None:
        entry.status, entry.update_at = KeyStatus.DEAD, self.clock()
        entry.expires_at = entry.update_at + self._dead_for_s

    def _release(self, claim: Claim, failure: Failure | None) -> Released:
        with self.lock:
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
                self._kill(entry)
            else:
                self._free(entry, failure.delay_s(noted.count))
            return Released(owned=True, attempts=noted.count, dead=dead)

    def _free(self, entry: Entry, delay_s: float) -> None:
        if not delay_s:
            del self.entries[entry.key.hash]
            return
        entry.owner, entry.status, entry.fingerprint = NOBODY, KeyStatus.IN_PROGRESS, None
        entry.update_at = self.clock()
        entry.lease_until = entry.update_at + delay_s
        # Its attempts are collected with it.
        entry.expires_at = entry.update_at + self.retention_s

    def _renew_many(self, claims: Sequence[Claim]) -> list[bool]:
        return [self._renew(claim) for claim in claims]

    def _renew(self, claim: Claim) -> bool:
        with self.lock:
            entry = self._mine(claim)
            if entry is None or not entry.status.in_progress:
                return False
            entry.lease_until = self.clock() + self._lapses_after_s
            return True

    def _garbage_collect(self, limit: int) -> int:
        with self.lock:
            now = self.clock()
            expired = [hashed for hashed, entry in self.entries.items() if _is_garbage(entry, now)]
            for hashed in expired[:limit]:
                self._forget(hashed)
            for hashed in [h for h, noted in self.attempts.items() if noted.expires_at < now]:
                if hashed not in self.entries:
                    del self.attempts[hashed]
            return len(expired[:limit])

    def _insert(self, request: ClaimRequest) -> Decision:
        if len(self.entries) >= self._max_keys:
            self._make_room()
        now = self.clock()
        # Even if the clock stands still or goes back, no fence repeats.
        self._last_fence = fence = max(int(now * 1_000_000), self._last_fence + 1)
        self.entries[request.key.hash] = Entry(
            request.key,
            request.status,
            request.owner,
            fence,
            now + self._lapses_after_s,
            request.fingerprint,
            now,
            now + self.retention_s,
        )
        return Decision(_ACQUIRED, Claim(request.key, fence, request.owner))

    def _stored(self, entry: Entry, now: float) -> StoredKey:
        noted = self.attempts.get(entry.key.hash) if entry.status is _DEAD else None
        return StoredKey(
            entry.status,
            entry.owner,
            entry.fence,
            entry.lease_until - now,
            entry.fingerprint,
            entry.result,
            noted.error if noted else None,
            entry.deaths,
        )

    def _mine(self, claim: Claim) -> Entry | None:
        entry = self.entries.get(claim.key.hash)
        return entry if entry and entry.owner == claim.owner else None

    def _note(self, key: Key, error: str) -> Attempts:
        noted = self.attempts.setdefault(key.hash, Attempts(0, ""))
        if len(self.attempts) > self._max_keys:
            # Forget those of deleted keys, oldest first; a stored key needs its last error.
            gone = (hashed for hashed in self.attempts if hashed not in self.entries and hashed != key.hash)
            for hashed in self._some(gone):
                del self.attempts[hashed]
        noted.error = error
        noted.expires_at = self.clock() + self.retention_s
        return noted

    def _make_room(self) -> None:
        # A dict keeps insertion order, so the first keys without a claim are the oldest.
        unclaimed = (
            hashed
            for hashed, entry in self.entries.items()
            if not entry.status.in_progress or entry.owner == NOBODY
        )
        oldest = self._some(unclaimed)
        if not oldest:
            raise StoreError(f"MemoryChecker is full: {self._max_keys} keys are in progress; raise max_keys")
        for hashed in oldest:
            self._forget(hashed)

    def _some(self, hashes: Iterable[bytes]) -> list[bytes]:
        """The first `max_keys / 100` hashes: many, because each scan of a dict passes its deleted entries again."""
        return list(islice(hashes, max(self._max_keys // 100, 1)))

    def _forget(self, hashed: bytes) -> None:
        del self.entries[hashed]
        self.attempts.pop(hashed, None)


def _is_garbage(entry: Entry, now: float) -> bool:
    if entry.expires_at >= now or entry.status is KeyStatus.IN_PROGRESS_PARK:
        return False
    return not (entry.status.in_progress and entry.lease_until >= now)


class MemoryKeyAdmin(KeyAdmin):
    """The keys in memory.

    Args:
        checker: has them.
    """

    def __init__(self, checker: MemoryBacked) -> None:
        self._checker = checker

    def list(self, selection: KeyFilter, *, limit: int | None = None) -> Iterator[KeyRecord]:
        with self._checker.lock:
            hashes = sorted(self._checker.entries)
        for hashed in hashes:
            if limit is not None and limit <= 0:
                return
            with self._checker.lock:
                entry = self._checker.entries.get(hashed)
                record = entry and self._record(entry)
            if record and selection.matches(record):
                limit = None if limit is None else limit - 1
                yield record

    def get(self, key: Key) -> KeyRecord | None:
        with self._checker.lock:
            entry = self._checker.entries.get(key.hash)
            return self._record(entry) if entry else None

    def stats(self) -> builtins.list[KeyStats]:
        return counted(self.list(KeyFilter()))

    def reopen(self, record: KeyRecord) -> bool:
        with self._checker.lock:
            if self._unchanged(record) is None:
                return False
            del self._checker.entries[record.hash]
            self._checker.attempts.pop(record.hash, None)
            return True

    def mark_done(self, record: KeyRecord) -> bool:
        with self._checker.lock:
            entry = self._unchanged(record)
            if entry is None or entry.status is KeyStatus.DONE:
                return False
            self._checker.finish(entry)
            return True

    def _unchanged(self, seen: KeyRecord) -> Entry | None:
        """The entry, if it has not changed since and has no live lease."""
        entry = self._checker.entries.get(seen.hash)
        if entry is None:
            return None
        now = self._record(entry)
        if (now.fence, now.status, now.update_at_us) != (seen.fence, seen.status, seen.update_at_us):
            return None
        idle = now.held or now.lapsed or not now.status.in_progress or now.lease_until_us is None
        return entry if idle else None

    def _record(self, entry: Entry) -> KeyRecord:
        noted = self._checker.attempts.get(entry.key.hash)
        leased = entry.status.in_progress and math.isfinite(entry.lease_until)
        return KeyRecord(
            hash=entry.key.hash,
            text=entry.key.text,
            status=entry.status,
            fence=entry.fence,
            lease_until_us=_microseconds(entry.lease_until) if leased else None,
            update_at_us=_microseconds(entry.update_at),
            expires_at_us=_microseconds(entry.expires_at) if math.isfinite(entry.expires_at) else None,
            attempts=noted.count if noted else 0,
            last_error=noted.error if noted else None,
            result=entry.result,
            now_us=_microseconds(self._checker.clock()),
            held=entry.owner == NOBODY and entry.status.in_progress,
            deaths=entry.deaths if entry.status.in_progress else 0,
        )


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)


class MemoryChecker(MemoryBacked):
    """Keys in this process's memory: for tests, demos and effects that die with the process.

    Args:
        lease_s: seconds a claim lasts without renewal; None: it never lapses.
        retention_s: seconds a key is remembered, counted from its claim, or from its completion if less than half of
            that time was left then.
        dead_retention_s: seconds a DEAD key is remembered; None: until a person resolves it.
        max_keys: the most keys remembered. When they are reached, the oldest done or dead keys, a hundredth of
            `max_keys`, are forgotten before they expire.
        clock: seconds since the epoch; injectable for tests.

    Raises:
        ConfigurationError: a duration or `max_keys` is not positive.
    """

    def _complete(self, completion: Completion) -> bool:
        with self.lock:
            entry = self._mine(completion.claim)
            if entry is None:
                return False
            if completion.result is not None:
                entry.result = completion.result
            self.finish(entry)
            return True


class AttemptChecker(MemoryBacked):
    """Lets every delivery run, for consumers where another system decides which messages are done.

    Use it with Kafka's transactions (`KafkaAdapter(semantics="exactly_once")`): if a checker remembered a message whose
    transaction is aborted later, the next delivery would be a duplicate, and its outputs would be lost. With any other
    semantics, effects happen again with every delivery.

    The position identifies a message, for adapters that give one (Kafka), so messages that were sent twice both run.
    Two deliveries of one position do not run at the same time. Attempts are counted and dead messages stay dead while
    this process lives.

    Args:
        lease_s: see `MemoryChecker`.
        retention_s: seconds the attempts of a failed message are remembered.
        dead_retention_s: see `MemoryChecker`.
        max_keys: the most messages in progress or failed.
        clock: see `MemoryChecker`.

    Raises:
        ConfigurationError: a duration or `max_keys` is not positive.
    """

    remembers = Remembers.NOTHING

    def _complete(self, completion: Completion) -> bool:
        with self.lock:
            entry = self._mine(completion.claim)
            if entry is None:
                return False
            self._forget(entry.key.hash)
            return True
