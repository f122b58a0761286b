"""RedisRunStore: runs and claims in one Redis server."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from idempotent.adapters.spark.ledger.claims import Holder, Owner, Owners, PendingRow
from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.redis.layout import (
    Names,
    attempt_and_lease,
    owned_value,
    owners,
    pending_head,
    pending_row,
    token_and_mark,
)
from idempotent.adapters.spark.ledger.runs import RunChange, RunRef, RunRow, RunState, Standing
from idempotent.adapters.spark.ledger.store import RunStore
from idempotent.stores.redis.client import open_client
from idempotent.stores.redis.scripts import Lua, RedisStore

_SLACK_MS: Final = 1000
_FOLDER: Final = files(__package__ or "")


def _script(name: str) -> Lua:
    return Lua((_FOLDER / f"{name}.lua").read_text())


_RUN_INSERT, _RUN_CHANGE = _script("insert_run"), _script("change_run")
_RUN_READ, _RUN_STANDINGS = _script("read_run"), _script("states")
_CLAIM, _STEAL = _script("claim"), _script("steal")
_HOLD, _TAKE_OVER, _FINISH = _script("hold"), _script("take_over"), _script("finish")
_RENEW_PENDING, _GIVE_UP = _script("renew_pending"), _script("give_up")


class RedisRunStore(RunStore):
    """Each call one script, so one round trip. A server, or the primary behind one address; not a cluster.

    A run stores which server it began on and how many keys that server had evicted. After a restart, a failover or an
    eviction it can be neither prepared nor committed, because claims may be gone. Begin it again while it is OPEN, and
    let it claim all its keys again.

    Args:
        config: where the ledger is.

    Raises:
        ConfigurationError: an invalid Redis URL.
        MissingExtraError: redis-py is not installed.
    """

    def __init__(self, config: StoreConfig) -> None:
        """Connect at the first use."""
        self._store = RedisStore(open_client(config.url), config.prefix)
        super().__init__(f"Redis {self._store.where}", retention_s=config.retention_s)
        self._names = Names(config.prefix)
        self._retention_ms = -(-self.retention.us // 1000)
        # Longer than any claim, so that each claim's run is still known.
        self._keep_ms = self._retention_ms + self.retention.margin_us // 1000 + _SLACK_MS

    def newest(self, consumer: str, run_id: str) -> RunRow | None:
        row = self._store.run(_RUN_READ, [self._names.newest(consumer, run_id)], [self._names.runs])
        return _run_row(consumer, run_id, int(row[1]), row) if row else None

    def find(self, ref: RunRef) -> RunRow | None:
        row = self._store.run(_RUN_READ, [self._names.run(ref.token)], ())
        return _run_row(ref.consumer, ref.run_id, ref.token, row) if row else None

    def standings(self, tokens: Collection[int]) -> Mapping[int, Standing]:
        found = self._store.run(_RUN_STANDINGS, [self._names.run(token) for token in tokens], ())
        return {
            token: Standing(RunState(int(state)), int(epoch), int(prepared))
            for token, (state, epoch, prepared) in zip(tokens, found, strict=True)
            if state
        }

    def count_owned(self, ref: RunRef) -> int:
        with self._store.edge():
            stored: Any = self._store.client.hget(self._names.run(ref.token).decode(), "owned")
        return int(stored or 0)

    def insert_run(self, ref: RunRef, newest: int | None, fingerprint: bytes | None, lease_us: int) -> None:
        names = [self._names.newest(ref.consumer, ref.run_id), self._names.run(ref.token)]
        arguments = (ref.token, _text(newest), ref.generation, fingerprint or b"", lease_us, self._memory())
        self._store.run(_RUN_INSERT, names, arguments)

    def change_run(self, token: int, change: RunChange) -> bool:
        arguments = (
            "".join(f"{state:d}" for state in change.within).encode(),
            _text(change.to),
            _text(change.lease_us),
            _text(change.epoch),
            b"1" if change.resumes else b"",
            _text(change.owned),
            _text(change.max_age_us),
            b"1" if change.only_lapsed else b"",
            change.fingerprint or b"",
            change.manifest or b"",
            (change.output_ref or "").encode(),
            self._keep_ms,
            self._memory() if change.resumes else b"",
        )
        return bool(self._store.run(_RUN_CHANGE, [self._names.run(token)], arguments))

    def lost(self, token: int) -> str | None:
        with self._store.edge():
            stored: Any = self._store.client.hget(self._names.run(token).decode(), "memory")
        if stored is None:
            return None
        before = stored if isinstance(stored, bytes) else str(stored).encode()
        now = self._memory()
        if before.split(b":")[0] != now.split(b":")[0]:
            return "the Redis server was restarted or replaced since the run was begun or resumed"
        return (
            None if before == now else "the Redis server has evicted keys since the run was begun or resumed"
        )

    def insert_owned(
        self, owner: Owner, hashes: Sequence[bytes], fingerprints: Sequence[bytes | None] | None
    ) -> Owners:
        marks = [mark or b"" for mark in fingerprints] if fingerprints else ()
        arguments = (self._retention_ms, owned_value(owner), owner.mark, *marks)
        answer = self._store.run(_CLAIM, self._with_run(owner.token, hashes), arguments)
        return owners(owner, len(hashes), fingerprints, answer)

    def read_owned(self, hashes: Sequence[bytes]) -> Owners:
        # The script inserts nothing for a run that does not exist.
        return self.insert_owned(Owner(0, 0), hashes, None)

    def steal(self, owner: Owner, seen: Owner, keys: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        hashes = [key_hash for key_hash, _ in keys]
        arguments: list[bytes | int] = [
            self._retention_ms,
            owned_value(owner),
            owner.mark,
            *token_and_mark(seen),
            *_marks(keys),
        ]
        return _confirmed(hashes, self._store.run(_STEAL, self._with_run(owner.token, hashes), arguments))

    def insert_pending(self, holder: Holder, hashes: Sequence[bytes]) -> dict[bytes, PendingRow]:
        arguments = (self._retention_ms, pending_head(holder), holder.lease_us, holder.epoch)
        now_us, *values = self._store.run(_HOLD, self._with_run(holder.token, hashes), arguments)
        return {
            key_hash: pending_row(key_hash, value, now_us)
            for key_hash, value in zip(hashes, values, strict=True)
            if value
        }

    def take_over(self, holder: Holder, seen: Sequence[PendingRow]) -> set[bytes]:
        hashes = [row.key_hash for row in seen]
        arguments: list[bytes | int] = [
            self._retention_ms,
            pending_head(holder),
            holder.lease_us,
            holder.epoch,
            *map(attempt_and_lease, seen),
        ]
        return _confirmed(
            hashes, self._store.run(_TAKE_OVER, self._with_run(holder.token, hashes), arguments)
        )

    def finish(self, attempt: bytes, results: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        bodies = (b"" if result is None else b"=" + result for _, result in results)
        return self._of_attempt(_FINISH, [key_hash for key_hash, _ in results], attempt, *bodies)

    def renew_pending(self, attempt: bytes, hashes: Sequence[bytes], lease_us: int) -> set[bytes]:
        return self._of_attempt(_RENEW_PENDING, hashes, attempt, lease_us)

    def give_up(self, attempt: bytes, hashes: Sequence[bytes]) -> None:
        self._store.run(_GIVE_UP, [self._names.claim(key_hash) for key_hash in hashes], (attempt,))

    def close(self) -> None:
        with self._store.edge():
            self._store.close()
            self._store.client.close()

    def _of_attempt(
        self, script: Lua, hashes: Sequence[bytes], attempt: bytes, *arguments: bytes | int
    ) -> set[bytes]:
        names = [self._names.claim(key_hash) for key_hash in hashes]
        return _confirmed(hashes, self._store.run(script, names, (self._retention_ms, attempt, *arguments)))

    def _with_run(self, token: int, hashes: Iterable[bytes]) -> list[bytes]:
        claim = self._names.claims
        return [self._names.run(token), *[claim + key_hash for key_hash in hashes]]

    def _memory(self) -> bytes:
        """The server's run and the number of its evictions. If either changes, claims may be gone."""
        with self._store.edge():
            server: Any = self._store.client.info("server")
            stats: Any = self._store.client.info("stats")
        return f"{server.get('run_id', '')}:{stats.get('evicted_keys', 0)}".encode()


def _marks(keys: Sequence[tuple[bytes, bytes | None]]) -> list[bytes]:
    return [mark or b"" for _, mark in keys] if any(mark for _, mark in keys) else []


def _confirmed(hashes: Sequence[bytes], answers: Sequence[int]) -> set[bytes]:
    return {key_hash for key_hash, answer in zip(hashes, answers, strict=True) if answer == 1}


def _text(number: int | None) -> bytes:
    return b"" if number is None else b"%d" % number


def _run_row(consumer: str, run_id: str, token: int, row: Sequence[Any]) -> RunRow:
    (
        now_us,
        _,
        state,
        generation,
        epoch,
        fingerprint,
        output_ref,
        lease_until,
        began_at,
        prepared,
        manifest,
    ) = row
    return RunRow(
        ref=RunRef(consumer, run_id, int(generation), token, int(epoch)),
        state=RunState(int(state)),
        fingerprint=fingerprint or None,
        output_ref=None if output_ref is None else output_ref.decode(),
        lease_until_us=int(lease_until),
        began_at_us=int(began_at),
        now_us=now_us,
        prepared=int(prepared),
        manifest=manifest,
    )
