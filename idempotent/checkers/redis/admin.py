"""RedisKeyAdmin: KeyAdmin over the keys in Redis."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from idempotent.admin import KeyAdmin, KeyFilter, KeyRecord, KeyStats, counted
from idempotent.checkers.redis.layout import HEAD_BYTES, Script, key_record
from idempotent.keys import Key
from idempotent.stores.redis.scripts import RedisStore

# A stored result may take 1 MB, so a page is small.
_PAGE: Final = 200
_SCAN_COUNT: Final = 1000
_READ: Final = Script("read")
_WHOLE: Final = -1


class RedisKeyAdmin(KeyAdmin):
    """The keys under one prefix, in no order.

    SCAN finds them. It does not block the server, and returns every key that exists during the whole scan. A key that
    is created, deleted or moved to another node of a cluster during the scan may be missed or listed twice.

    Args:
        store: the Redis database.
        retention_us: how long a key resolved after its expiry is still kept, in microseconds.
    """

    def __init__(self, store: RedisStore, retention_us: int) -> None:
        self._store = store
        self._resolves = Script("resolve", retention_us=retention_us)

    def list(self, selection: KeyFilter, *, limit: int | None = None) -> Iterator[KeyRecord]:
        return islice(filter(selection.matches, self._records(_WHOLE)), limit)

    def get(self, key: Key) -> KeyRecord | None:
        return next(self._read([self._store.names.name(key.hash)], _WHOLE), None)

    def stats(self) -> builtins.list[KeyStats]:
        return counted(self._records(HEAD_BYTES))

    def reopen(self, record: KeyRecord) -> bool:
        return self._resolve(record, b"reopen")

    def mark_done(self, record: KeyRecord) -> bool:
        return self._resolve(record, b"done")

    def _resolve(self, record: KeyRecord, decision: bytes) -> bool:
        name = self._store.names.name(record.hash)
        seen = (record.fence, int(record.status), record.update_at_us)
        return bool(self._store.run(self._resolves, [name], (*seen, decision)))

    def _records(self, last_byte: int) -> Iterator[KeyRecord]:
        names = self._names()
        # SCAN may return a key twice, in the same call or the next one.
        while page := builtins.list(dict.fromkeys(islice(names, _PAGE))):
            yield from self._read(page, last_byte)

    def _names(self) -> Iterator[bytes]:
        prefix = re.sub(rb"([\\*?\[\]^])", rb"\\\1", self._store.names.prefix)
        found: Iterable[bytes | str] = self._store.client.scan_iter(match=prefix + b"{*", count=_SCAN_COUNT)
        with self._store.edge():
            for name in found:
                encoded = name.encode() if isinstance(name, str) else name
                if self._store.names.hash_of(encoded) is not None:
                    yield encoded

    def _read(self, names: builtins.list[bytes], last_byte: int) -> Iterator[KeyRecord]:
        for positions in self._store.together(names):
            part = [names[at] for at in positions]
            now_us, *values = self._store.run(_READ, part, [last_byte])
            for at, name in enumerate(part):
                value, failure = values[2 * at : 2 * at + 2]
                if value:  # a key that was released or expired since the scan has none
                    hashed = self._store.names.hash_of(name) or b""
                    yield key_record(hashed, value, failure, now_us)
