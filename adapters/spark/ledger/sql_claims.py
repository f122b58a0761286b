"""SqlClaims: the table `<table>_run_claims`, with one row for each key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, Final, TypeVar

from idempotent.adapters.spark.ledger.claims import HANDLED, ClaimState, Holder, Owner, PendingRow
from idempotent.adapters.spark.ledger.runs import RunRef, RunState
from idempotent.adapters.spark.ledger.store import RunStore
from idempotent.schema import run_claims_name, runs_name
from idempotent.stores.sql.connections import Connections
from idempotent.stores.sql.cursor import DriverConnection, Row, execute, query
from idempotent.stores.sql.dialects import Conflict, SqlDialect

T = TypeVar("T")
# The conditions are joined by OR, and SQLite limits the depth of an expression to 1,000.
_TAKE_OVERS: Final = 200


class SqlClaims(RunStore):
    """The steps of a store that concern claims.

    Every change has its condition, and the row count tells whether that held for all rows.

    Attributes:
        _connections: tell the dialect.
        _table: validated name of the key table that the tables stand beside.
    """

    _connections: Connections
    _table: str

    @abstractmethod
    def _run(self, work: Callable[..., T], *arguments: Any, lock_s: int | None = None) -> T:
        """What `work` returns for a connection and the arguments; see `SqlRunStore`."""

    @cached_property
    def _dialect(self) -> SqlDialect:
        return self._connections.dialect

    @cached_property
    def _runs(self) -> str:
        return self._dialect.quoted(runs_name(self._table))

    @cached_property
    def _claims(self) -> str:
        return self._dialect.quoted(run_claims_name(self._table))

    @cached_property
    def _open_run(self) -> str:
        """A condition with two parameters, token and epoch: this run is OPEN and this attempt its newest.

        Both stay so while the statement runs. On PostgreSQL the lock does not block the renewal of a lease, so a change
        of state or epoch takes a stronger one.
        """
        lock = " FOR KEY SHARE" if self._dialect.name == "postgresql" else self._dialect.locking_read
        return f"EXISTS (SELECT 1 FROM {self._runs} WHERE token = ? AND epoch = ? AND state = {RunState.OPEN:d}{lock})"

    @cached_property
    def _owner(self) -> str:
        return f"key_hash, {_owner_text(self._dialect)}, fingerprint"

    @cached_property
    def _pending(self) -> str:
        return f"key_hash, state, run, epoch, attempt, lease_until, result, {self._dialect.now_us}"

    @cached_property
    def _text(self) -> Callable[[str], str]:
        return lru_cache(maxsize=128)(self._dialect.markers)

    def insert_owned(
        self, owner: Owner, hashes: Sequence[bytes], fingerprints: Sequence[bytes | None] | None
    ) -> list[Owner | None]:
        columns = {"run": "?", "state": f"{ClaimState.OWNED:d}", "epoch": "?", "frame": "?"}
        values = (owner.token, owner.mark, owner.frame, owner.token, owner.mark)
        rows = self._insert(columns, self._owner, hashes, fingerprints, values)
        return list(map(_owners(rows).get, hashes))

    def read_owned(self, hashes: Sequence[bytes]) -> list[Owner | None]:
        return list(map(_owners(self._read(self._owner, hashes)).get, hashes))

    def steal(self, owner: Owner, seen: Owner, keys: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        hashes = [key_hash for key_hash, _ in keys]
        marks = [key for key in keys if key[1] is not None]
        cases = " ".join(["WHEN ? THEN ?"] * len(marks))
        fingerprint = f"CASE key_hash {cases} ELSE NULL END" if marks else "NULL"
        statement = self._text(
            f"UPDATE {self._claims} SET run = ?, epoch = ?, frame = ?, fingerprint = {fingerprint}"
            f" WHERE key_hash IN {places(len(keys))} AND run = ? AND COALESCE(epoch, 0) = ? AND {self._open_run}"
        )
        old, new = (seen.token, seen.mark), (owner.token, owner.mark)
        params = (*new, owner.frame, *chain.from_iterable(marks), *hashes, *old, *new)
        if self._run(execute, statement, params) == len(hashes):
            return set(hashes)
        owners = _owners(self._read(self._owner, hashes))
        return {key_hash for key_hash, found in owners.items() if found[:3] == owner[:3]}

    def insert_pending(self, holder: Holder, hashes: Sequence[bytes]) -> dict[bytes, PendingRow]:
        columns = {
            "run": "?",
            "state": "?",
            "epoch": "?",
            "attempt": f"CAST(? AS {self._dialect.blob})",
            "lease_until": f"{self._dialect.now_us} + ?",
        }
        claim = (holder.token, int(holder.state), holder.epoch, holder.attempt, holder.lease_us)
        values = (*claim, holder.token, holder.epoch)
        rows = self._insert(columns, self._pending, hashes, None, values)
        return {key_hash: _pending_row(row) for key_hash, row in rows.items()}

    def take_over(self, holder: Holder, seen: Sequence[PendingRow]) -> set[bytes]:
        taken: set[bytes] = set()
        for start in range(0, len(seen), _TAKE_OVERS):
            part = seen[start : start + _TAKE_OVERS]
            as_seen = " OR ".join(["(key_hash = ? AND attempt = ? AND lease_until = ?)"] * len(part))
            update = (
                f"UPDATE {self._claims} SET run = ?, state = ?, epoch = ?, attempt = ?,"
                f" lease_until = {self._dialect.now_us} + ?"
                f" WHERE ({as_seen}) AND state = {ClaimState.PENDING:d} AND {self._open_run}"
            )
            conditions = chain.from_iterable((row.key_hash, row.attempt, row.lease_until_us) for row in part)
            values = (holder.token, int(holder.state), holder.epoch, holder.attempt, holder.lease_us)
            params = (*values, *conditions, holder.token, holder.epoch)
            hashes = [row.key_hash for row in part]
            taken |= self._held(update, params, holder.attempt, hashes, holder.state)
        return taken

    def finish(self, holder: Holder, results: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        hashes = [key_hash for key_hash, _ in results]
        stored = [pair for pair in results if pair[1] is not None]
        cases = " ".join(["WHEN ? THEN ?"] * len(stored))
        result = f", result = CASE key_hash {cases} ELSE NULL END" if stored else ""
        update = (
            f"UPDATE {self._claims} SET state = {ClaimState.DONE:d}{result}"
            f" WHERE key_hash IN {places(len(hashes))} AND attempt = ?"
        )
        params = (*chain.from_iterable(stored), *hashes, holder.attempt)
        return self._held(update, params, holder.attempt, hashes, ClaimState.DONE)

    def renew_pending(self, holder: Holder, hashes: Sequence[bytes]) -> set[bytes]:
        update = (
            f"UPDATE {self._claims} SET lease_until = {self._dialect.now_us} + ?"
            f" WHERE key_hash IN {places(len(hashes))} AND attempt = ? AND state = {ClaimState.PENDING:d}"
        )
        params = (holder.lease_us, *hashes, holder.attempt)
        return self._held(update, params, holder.attempt, hashes, ClaimState.PENDING)

    def give_up(self, holder: Holder, hashes: Sequence[bytes]) -> None:
        delete = (
            f"DELETE FROM {self._claims} WHERE key_hash IN {places(len(hashes))}"
            f" AND attempt = ? AND state = {holder.state:d}"
        )
        # A claim that is DONE may be another transaction's by now.
        lock_s = 1 if holder.state is ClaimState.DONE else None
        self._run(execute, self._text(delete), (*hashes, holder.attempt), lock_s=lock_s)

    def count_owned(self, ref: RunRef) -> int:
        return self._run(self._marked, ref.token, ref.epoch)

    def _marked(self, db: DriverConnection, token: int, epoch: int) -> int:
        """The number of OWNED claims of a run with this mark."""
        which = f"run = ? AND state = {ClaimState.OWNED:d} AND epoch = ?"
        count = self._text(f"SELECT COUNT(*) FROM {self._claims} WHERE {which}")
        return int(query(db, count, (token, epoch))[0][0])

    def _insert(
        self,
        columns: Mapping[str, str],
        answer: str,
        hashes: Sequence[bytes],
        fingerprints: Sequence[bytes | None] | None,
        values: Sequence[Any],
    ) -> dict[bytes, Row]:
        """Insert claims of keys without one, while the run is OPEN; the rows of all keys that have one afterwards.

        Args:
            columns: SQL expressions of the columns to insert beside `key_hash` and `fingerprint`.
            answer: the columns to return; the first is `key_hash`.
            hashes: of the keys.
            fingerprints: aligned; None: no key has one, which saves a parameter for each key.
            values: parameters of the columns and of the condition.
        """
        # Sorted: two statements lock their common keys in the same order.
        keys: Sequence[Any] = sorted(hashes)
        given = {"key_hash": "h"}
        if fingerprints is not None:
            pairs = sorted(zip(hashes, fingerprints, strict=True), key=itemgetter(0))
            given, keys = given | {"fingerprint": "f"}, list(chain.from_iterable(pairs))
        row = ", ".join("?" * len(given))
        is_silent = self._dialect.conflict is Conflict.SILENT
        # Only MySQL wants ROW() after VALUES; MariaDB is faster with VALUES than with UNION ALL.
        rows = (
            " UNION ALL ".join([f"SELECT {row}"] * len(hashes))
            if is_silent
            else "VALUES " + ", ".join([f"({row})"] * len(hashes))
        )
        blobs = [f"CAST(v.{name} AS {self._dialect.blob})" for name in given.values()]
        statement = self._text(
            f"INSERT INTO {self._claims} ({', '.join([*given, *columns])})"
            f" WITH v({', '.join(given.values())}) AS ({rows})"
            f" SELECT {', '.join([*blobs, *columns.values()])} FROM v WHERE {self._open_run}"
            f" {self._dialect.if_stored()}{'' if is_silent else f' RETURNING {answer}'}"
        )
        if is_silent:
            self._run(execute, statement, (*keys, *values))
            return self._read(answer, hashes)
        found = {bytes(row[0]): row for row in self._run(query, statement, (*keys, *values))}
        if len(found) == len(hashes):
            return found
        return found | self._read(answer, [each for each in hashes if each not in found])

    def _read(self, answer: str, hashes: Sequence[bytes]) -> dict[bytes, Row]:
        """The rows of the keys that have one."""
        statement = f"SELECT {answer} FROM {self._claims} WHERE key_hash IN {places(len(hashes))}"
        return {bytes(row[0]): row for row in self._run(query, self._text(statement), hashes)}

    def _held(
        self,
        update: str,
        params: Sequence[Any],
        attempt: bytes,
        hashes: Sequence[bytes],
        state: ClaimState,
    ) -> set[bytes]:
        """Update claims; those of these keys that the attempt has in this state then."""
        if self._run(execute, self._text(update), params) == len(hashes):
            return set(hashes)
        statement = self._text(
            f"SELECT key_hash FROM {self._claims} WHERE key_hash IN {places(len(hashes))}"
            f" AND attempt = ? AND state = {state:d}"
        )
        return {bytes(row[0]) for row in self._run(query, statement, (*hashes, attempt))}


def _owner_text(dialect: SqlDialect) -> str:
    """Token, mark and frame as one column: a driver takes longer for two more columns than for the rest of a row."""
    frame = f"CASE WHEN state = {ClaimState.OWNED:d} THEN COALESCE(frame, 0) ELSE {HANDLED:d} END"
    parts = ("run", "COALESCE(epoch, 0)", frame)
    if dialect.name == "sqlite":
        return " || ':' || ".join(parts)
    return f"CONCAT_WS(':', {', '.join(parts)})"


def _owners(rows: dict[bytes, Row]) -> dict[bytes, Owner]:
    """The owners by hash, with one object for each owner: a tuple for each row costs more than the rest."""
    known: dict[Row, Owner] = {}
    owners: dict[bytes, Owner] = {}
    for key_hash, row in rows.items():
        found = row[1:]
        owner = known.get(found)
        if owner is None:
            text, fingerprint = found
            token, mark, frame = map(int, text.split(b":" if isinstance(text, bytes) else ":"))
            owner = Owner(token, mark, frame, None if fingerprint is None else bytes(fingerprint))
            known[found] = owner
        owners[key_hash] = owner
    return owners


def _pending_row(row: Row) -> PendingRow:
    key_hash, state, token, epoch, attempt, lease_until, result, now = row
    return PendingRow(
        key_hash=bytes(key_hash),
        state=ClaimState(state),
        token=token,
        epoch=epoch or 0,
        attempt=bytes(attempt or b""),
        lease_until_us=lease_until or 0,
        result=None if result is None else bytes(result),
        now_us=int(now),
    )


def places(count: int) -> str:
    """`(?, ?, ...)`, a place for each of `count` values."""
    return f"({', '.join('?' * count)})"
