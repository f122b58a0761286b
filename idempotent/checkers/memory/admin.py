"""MemoryKeyAdmin: KeyAdmin over the keys in this process's memory."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterator

from idempotent.admin import KeyAdmin, KeyFilter, KeyRecord, KeyStats, counted
from idempotent.checkers.memory.keys import Entry, MemoryKeys
from idempotent.claims import NOBODY, KeyStatus
from idempotent.keys import Key


class MemoryKeyAdmin(KeyAdmin):
    """The keys in memory.

    Args:
        keys: the checker's keys.
    """

    def __init__(self, keys: MemoryKeys) -> None:
        self._keys = keys

    def list(self, selection: KeyFilter, *, limit: int | None = None) -> Iterator[KeyRecord]:
        with self._keys.lock:
            hashes = sorted(self._keys.entries)
        for hashed in hashes:
            if limit is not None and limit <= 0:
                return
            with self._keys.lock:
                entry = self._keys.entries.get(hashed)
                record = entry and self._record(entry)
            if record and selection.matches(record):
                limit = None if limit is None else limit - 1
                yield record

    def get(self, key: Key) -> KeyRecord | None:
        with self._keys.lock:
            entry = self._keys.entries.get(key.hash)
            return self._record(entry) if entry else None

    def stats(self) -> builtins.list[KeyStats]:
        return counted(self.list(KeyFilter()))

    def reopen(self, record: KeyRecord) -> bool:
        with self._keys.lock:
            if self._unchanged(record) is None:
                return False
            del self._keys.entries[record.hash]
            self._keys.attempts.pop(record.hash, None)
            return True

    def mark_done(self, record: KeyRecord) -> bool:
        with self._keys.lock:
            entry = self._unchanged(record)
            if entry is None or entry.status is KeyStatus.DONE:
                return False
            self._keys.finish(entry)
            return True

    def _unchanged(self, seen: KeyRecord) -> Entry | None:
        """The entry, if it has not changed since and has no live lease."""
        entry = self._keys.entries.get(seen.hash)
        if entry is None:
            return None
        now = self._record(entry)
        if (now.fence, now.status, now.update_at_us) != (seen.fence, seen.status, seen.update_at_us):
            return None
        idle = now.held or now.lapsed or not now.status.in_progress or now.lease_until_us is None
        return entry if idle else None

    def _record(self, entry: Entry) -> KeyRecord:
        noted = self._keys.attempts.get(entry.key.hash)
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
            now_us=_microseconds(self._keys.clock()),
            held=entry.owner == NOBODY and entry.status.in_progress,
        )


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)
