"""MemoryKeyAdmin: KeyAdmin over a MemoryChecker's dicts, for this process's own keys."""

from __future__ import annotations

import builtins
import math
import threading
from collections.abc import Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Final

from idempotent.admin import KeyAdmin, KeyFilter, KeyRecord, KeyStats
from idempotent.claims import KeyStatus
from idempotent.keys import HASH_BYTES, TEXT_LIMIT, Key

if TYPE_CHECKING:
    from idempotent.checkers.memory.checker import Attempts, Entry

# What a long key's text is cut to, before its hash.
_READABLE: Final = TEXT_LIMIT - 2 * HASH_BYTES - 1


class MemoryKeyAdmin(KeyAdmin):
    """The keys in memory.

    Args:
        entries: the checker's keys.
        attempts: the checker's failures.
        lock: what guards both.
        clock: the checker's clock, in seconds.
    """

    def __init__(
        self,
        entries: MutableMapping[bytes, Entry],
        attempts: MutableMapping[bytes, Attempts],
        lock: threading.Lock,
        clock: Callable[[], float],
    ) -> None:
        """Share them with the checker."""
        self._entries = entries
        self._attempts = attempts
        self._lock = lock
        self._clock = clock

    def list(self, selection: KeyFilter, *, limit: int | None = None) -> Iterator[KeyRecord]:
        with self._lock:
            hashes = sorted(self._entries)
        for hashed in hashes:
            if limit is not None and limit <= 0:
                return
            with self._lock:
                entry = self._entries.get(hashed)
                record = entry and self._record(entry)
            if record and _is_meant(record, selection):
                limit = None if limit is None else limit - 1
                yield record

    def get(self, key: Key) -> KeyRecord | None:
        with self._lock:
            entry = self._entries.get(key.hash)
            return self._record(entry) if entry else None

    def stats(self) -> builtins.list[KeyStats]:
        counted: dict[tuple[str, KeyStatus], KeyStats] = {}
        for record in self.list(KeyFilter()):
            name, status = consumer_of(record.text), record.status
            seen = counted.get((name, status), KeyStats(name, status, 0, 0, record.update_at_us))
            counted[name, status] = KeyStats(
                name,
                status,
                seen.count + 1,
                seen.lapsed + record.lapsed,
                min(seen.oldest_update_us, record.update_at_us),
            )
        return [counted[name] for name in sorted(counted)]

    def reopen(self, record: KeyRecord) -> bool:
        with self._lock:
            if self._unchanged(record) is None:
                return False
            del self._entries[record.hash]
            self._attempts.pop(record.hash, None)
            return True

    def mark_done(self, record: KeyRecord) -> bool:
        with self._lock:
            entry = self._unchanged(record)
            if entry is None or entry.status is KeyStatus.DONE:
                return False
            entry.status = KeyStatus.DONE
            entry.update_at = self._clock()
            return True

    def _unchanged(self, seen: KeyRecord) -> Entry | None:
        """The entry, if it is as recorded and nobody's lease is live."""
        entry = self._entries.get(seen.hash)
        if entry is None:
            return None
        now = self._record(entry)
        if (now.fence, now.status, now.update_at_us) != (seen.fence, seen.status, seen.update_at_us):
            return None
        return entry if now.lapsed or not now.status.in_progress or now.lease_until_us is None else None

    def _record(self, entry: Entry) -> KeyRecord:
        noted = self._attempts.get(entry.key.hash)
        leased = entry.status.in_progress and math.isfinite(entry.lease_until)
        return KeyRecord(
            hash=entry.key.hash,
            text=entry.key.text,
            status=entry.status,
            fence=entry.fence,
            lease_until_us=_microseconds(entry.lease_until) if leased else None,
            update_at_us=_microseconds(entry.update_at),
            expires_at_us=_microseconds(entry.expires_at),
            attempts=noted.count if noted else 0,
            last_error=noted.error if noted else None,
            result=entry.result,
            now_us=_microseconds(self._clock()),
        )


def consumer_of(text: str) -> str:
    """The consumer in a key's readable text: what stands before the second ':', as far as long texts go."""
    return ":".join(text[:_READABLE].split(":", 2)[:2])


def _is_meant(record: KeyRecord, selection: KeyFilter) -> bool:
    if selection.consumer is not None and not record.text.startswith(f"{selection.consumer}:"[:_READABLE]):
        return False
    if selection.statuses and record.status not in selection.statuses:
        return False
    return record.lapsed or not selection.lapsed


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)
