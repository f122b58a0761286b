"""RedisRunStore: runs and claims in one Redis server, as the scripts in `lua/` store them.

============================  ======================================================================================
`<prefix>newest:<hash>`       token of the newest generation of a run, in digits
`<prefix>run:<token>`         a hash: state, generation, epoch, fingerprint, output_ref, lease, began (microseconds),
                              owned (the number of OWNED claims with the mark of this epoch), prepared (the epoch that
                              was PREPARED, 0 before), manifest, memory (the server and its evictions, see
                              RedisRunStore), pointer (the name above), keep (milliseconds, once it has ended),
                              k (its key, readable), driver (host and process)
`<prefix>claim:<key hash>`    a string, of 20 bytes after the colon; see below
============================  ======================================================================================

A claim, numbers big-endian:

======  =====  ===========  =========================================================
offset  bytes  field        meaning
======  =====  ===========  =========================================================
0       8      token        of the owning run
8       1      state        `ClaimState`
9       4      epoch        of the run; the mark of an OWNED claim, which ends with:
13      2      frame
15      0, 8   fingerprint  of the payload
13      16     attempt      PENDING and DONE have these instead
29      8      lease_until  microseconds
37             result       DONE: nothing, or '=' and the result
======  =====  ===========  =========================================================

Claims expire a retention after they were made or changed, ended runs a little later, by the longest retention of the
drivers that began them. Other runs do not expire.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import islice
from struct import Struct
from typing import Any, Final

from idempotent.adapters.spark.ledger.claims import (
    HANDLED,
    MAX_ROWS,
    ClaimState,
    Holder,
    Owner,
    PendingRow,
)
from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.runs import (
    RunChange,
    RunRef,
    RunRow,
    RunState,
    consumer_shown,
    names_in,
    run_key,
    this_driver,
)
from idempotent.adapters.spark.ledger.store import RunStore
from idempotent.stores.redis.client import open_client
from idempotent.stores.redis.scripts import Lua, RedisStore

_SLACK_MS: Final = 1000
_SCRIPTS: Final = files(__package__ or "") / "lua"
_HEAD: Final = Struct(">QB")
_OWNED: Final = Struct(">QBIH")
_PENDING: Final = Struct(">QBI16s")
_ROW: Final = Struct(">QBI16sQ")
_ATTEMPT_AND_LEASE: Final = Struct(">16sQ")


def _script(name: str) -> Lua:
    return Lua((_SCRIPTS / f"{name}.lua").read_text())


_RUN_INSERT, _RUN_CHANGE = _script("insert_run"), _script("change_run")
_READ_RUNS: Final = _script("read_runs")
# As `RunRow.stored` takes them, between the token and the store's clock.
_FIELDS: Final = b"generation state epoch fingerprint output_ref lease began prepared driver".split()
_ALL_FIELDS: Final = [*_FIELDS, b"manifest"]
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
        self._prefix = config.prefix
        self._runs = f"{config.prefix}run:".encode()
        self._claims = f"{config.prefix}claim:".encode()
        self._retention_ms = -(-self.retention.us // 1000)
        # Longer than any claim, so that each claim's run is still known.
        self._keep_ms = self._retention_ms + self.retention.margin_us // 1000 + _SLACK_MS

    def newest(self, consumer: str, run_id: str, run_hash: bytes | None = None) -> RunRow | None:
        pointer = self._pointer(run_hash or run_key(consumer, run_id).hash)
        now_us, (token, *fields) = self._store.run(_READ_RUNS, [pointer], [self._runs, *_ALL_FIELDS])
        return _run_row((consumer, run_id), token, fields, now_us)

    def find(self, ref: RunRef) -> RunRow | None:
        now_us, (_, *fields) = self._store.run(_READ_RUNS, [self._run(ref.token)], [b"", *_ALL_FIELDS])
        return _run_row((ref.consumer, ref.run_id), ref.token, fields, now_us)

    def rows(self, tokens: Collection[int]) -> Mapping[int, RunRow]:
        wanted = [b"", b"k", *_FIELDS]
        now_us, *rows = self._store.run(_READ_RUNS, [self._run(token) for token in tokens], wanted)
        return {
            token: RunRow.stored(names_in(key.decode()), [token, *fields, now_us, None])
            for token, (_, key, *fields) in zip(tokens, rows, strict=True)
            if key is not None
        }

    def count_owned(self, ref: RunRef) -> int:
        with self._store.edge():
            stored: Any = self._store.client.hget(self._run(ref.token).decode(), "owned")
        return int(stored or 0)

    def insert_run(self, ref: RunRef, newest: int | None, fingerprint: bytes | None, lease_us: int) -> None:
        key = run_key(ref.consumer, ref.run_id)
        names = [self._pointer(key.hash), self._run(ref.token)]
        told = (ref.token, _text(newest), ref.generation, fingerprint or b"", lease_us)
        self._store.run(
            _RUN_INSERT,
            names,
            (*told, self._memory(), self._keep_ms, key.text.encode(), this_driver().encode()),
        )

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
            this_driver().encode(),
        )
        return bool(self._store.run(_RUN_CHANGE, [self._run(token)], arguments))

    def listed(self, states: Collection[RunState], consumer: str | None = None) -> Iterator[RunRow]:
        wanted = None if consumer is None else consumer_shown(consumer)
        escaped = "".join(f"\\{each}" if each in "*?[]\\" else each for each in self._prefix)
        seen: set[int] = set()
        with self._store.edge():
            client: Any = self._store.client
            found = client.scan_iter(match=f"{escaped}run:*", count=MAX_ROWS, _type="HASH")
            while page := list(islice(found, MAX_ROWS)):
                texts = (name.decode() if isinstance(name, bytes) else name for name in page)
                # SCAN may return a name twice.
                new = {int(text.rpartition(":")[2]) for text in texts} - seen
                seen |= new
                for row in self.rows(new).values():
                    if row.state in states and wanted in (None, row.ref.consumer):
                        yield row

    def lost(self, token: int) -> str | None:
        with self._store.edge():
            stored: Any = self._store.client.hget(self._run(token).decode(), "memory")
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
    ) -> list[Owner | None]:
        marks = [mark or b"" for mark in fingerprints] if fingerprints else ()
        arguments = (self._retention_ms, _owned_value(owner), owner.mark, *marks)
        answer = self._store.run(_CLAIM, self._with_run(owner.token, hashes), arguments)
        return _owners(owner, len(hashes), fingerprints, answer)

    def read_owned(self, hashes: Sequence[bytes]) -> list[Owner | None]:
        # The script inserts nothing for a run that does not exist.
        return self.insert_owned(Owner(0, 0), hashes, None)

    def steal(self, owner: Owner, seen: Owner, keys: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        hashes, marks = zip(*keys, strict=True)
        arguments: list[bytes | int] = [
            self._retention_ms,
            _owned_value(owner),
            owner.mark,
            seen.token.to_bytes(8),
            seen.mark.to_bytes(4),
            *([mark or b"" for mark in marks] if any(marks) else []),
        ]
        return _confirmed(hashes, self._store.run(_STEAL, self._with_run(owner.token, hashes), arguments))

    def insert_pending(self, holder: Holder, hashes: Sequence[bytes]) -> dict[bytes, PendingRow]:
        arguments = (self._retention_ms, _pending_head(holder), holder.lease_us, holder.epoch)
        now_us, *values = self._store.run(_HOLD, self._with_run(holder.token, hashes), arguments)
        return {
            key_hash: _pending_row(key_hash, value, now_us)
            for key_hash, value in zip(hashes, values, strict=True)
            if value
        }

    def take_over(self, holder: Holder, seen: Sequence[PendingRow]) -> set[bytes]:
        hashes = [row.key_hash for row in seen]
        arguments: list[bytes | int] = [
            self._retention_ms,
            _pending_head(holder),
            holder.lease_us,
            holder.epoch,
            *(_ATTEMPT_AND_LEASE.pack(row.attempt, row.lease_until_us) for row in seen),
        ]
        return _confirmed(
            hashes, self._store.run(_TAKE_OVER, self._with_run(holder.token, hashes), arguments)
        )

    def finish(self, holder: Holder, results: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        bodies = (b"" if result is None else b"=" + result for _, result in results)
        return self._of_attempt(_FINISH, [key_hash for key_hash, _ in results], holder.attempt, *bodies)

    def renew_pending(self, holder: Holder, hashes: Sequence[bytes]) -> set[bytes]:
        return self._of_attempt(_RENEW_PENDING, hashes, holder.attempt, holder.lease_us)

    def give_up(self, holder: Holder, hashes: Sequence[bytes]) -> None:
        self._store.run(_GIVE_UP, [self._claims + key_hash for key_hash in hashes], (holder.attempt,))

    def close(self) -> None:
        with self._store.edge():
            self._store.close()
            self._store.client.close()

    def _of_attempt(
        self, script: Lua, hashes: Sequence[bytes], attempt: bytes, *arguments: bytes | int
    ) -> set[bytes]:
        names = [self._claims + key_hash for key_hash in hashes]
        return _confirmed(hashes, self._store.run(script, names, (self._retention_ms, attempt, *arguments)))

    def _with_run(self, token: int, hashes: Iterable[bytes]) -> list[bytes]:
        claim = self._claims
        return [self._run(token), *[claim + key_hash for key_hash in hashes]]

    def _run(self, token: int) -> bytes:
        """The name of a run."""
        return self._runs + str(token).encode()

    def _pointer(self, run_hash: bytes) -> bytes:
        """The name of the pointer to the newest generation."""
        return f"{self._prefix}newest:{run_hash.hex()}".encode()

    def _memory(self) -> bytes:
        """The server's run and the number of its evictions. If either changes, claims may be gone."""
        with self._store.edge():
            server: Any = self._store.client.info("server")
            stats: Any = self._store.client.info("stats")
        return f"{server.get('run_id', '')}:{stats.get('evicted_keys', 0)}".encode()


def _run_row(names: tuple[str, str], token: Any, fields: Sequence[Any], now_us: int) -> RunRow | None:
    """A run as the ledger reads it; None if it is not stored."""
    *head, manifest = fields
    return None if head[0] is None else RunRow.stored(names, [token, *head, now_us, manifest])


def _confirmed(hashes: Sequence[bytes], answers: Sequence[int]) -> set[bytes]:
    return {key_hash for key_hash, answer in zip(hashes, answers, strict=True) if answer == 1}


def _text(number: int | None) -> bytes:
    return b"" if number is None else b"%d" % number


def _owned_value(owner: Owner) -> bytes:
    """An OWNED claim without its fingerprint."""
    return _OWNED.pack(owner.token, ClaimState.OWNED, owner.mark, owner.frame)


def _pending_head(holder: Holder) -> bytes:
    """A PENDING claim without its lease."""
    return _PENDING.pack(holder.token, ClaimState.PENDING, holder.epoch, holder.attempt)


def head_of(value: bytes) -> tuple[int, ClaimState]:
    """Token and state of a claim in any state."""
    token, state = _HEAD.unpack_from(value)
    return token, ClaimState(state)


def _owner_of(value: bytes) -> Owner:
    """The owner of a claim in any state."""
    token, state, mark, frame = _OWNED.unpack_from(value)
    if state != ClaimState.OWNED:
        return Owner(token, mark, HANDLED)
    return Owner(token, mark, frame, value[_OWNED.size :] or None)


def _owners(
    owner: Owner, count: int, fingerprints: Sequence[bytes | None] | None, answer: int | Sequence[Any]
) -> list[Owner | None]:
    """The owners in an answer of `claim.lua`.

    Args:
        owner: token, mark and frame that the run claims with.
        count: the number of keys.
        fingerprints: that the run gave, aligned; None: no key has one.
        answer: 0, or places and values.
    """
    made: list[Owner | None] = [owner] * count
    if fingerprints is not None:
        made = [Owner(*owner[:3], mark) for mark in fingerprints]
    if isinstance(answer, int):
        return made
    # A key without an owner has the place -1, the last.
    others = (None, *map(_owner_of, answer[count:]), None)
    return [others[at] if at else own for at, own in zip(answer[:count], made, strict=True)]


def _pending_row(key_hash: bytes, value: bytes, now_us: int) -> PendingRow:
    """A stored claim as RunLedger reads it."""
    token, state = head_of(value)
    if state is ClaimState.OWNED:
        return PendingRow(key_hash, state, token, 0, b"", 0, None, now_us)
    _, _, epoch, attempt, lease_until = _ROW.unpack_from(value)
    body = value[_ROW.size :]
    return PendingRow(key_hash, state, token, epoch, attempt, lease_until, body[1:] if body else None, now_us)
