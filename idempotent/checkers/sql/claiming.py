"""Claiming: an INSERT claims a free key; `judge` decides about a stored one.

No write relies on an earlier read: each repeats its condition, and its row count decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from idempotent.checkers.judging import Change, StoredKey, judge, known
from idempotent.checkers.sql.failures import FailureTable
from idempotent.checkers.sql.statements import MAX_ROWS, MICROSECONDS, Statements
from idempotent.claims import NOBODY, UNKNOWN_EFFECT, Claim, ClaimRequest, Decision, KeyStatus, Verdict
from idempotent.stores.sql.cursor import DriverConnection, Row, execute, insert_id, query
from idempotent.stores.sql.dialects import Conflict, SqlDialect

_ROUNDS: Final = 4
_CONTENDED_RETRY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class ClaimMode:
    """The options of a claim in autocommit (the defaults) or in a transaction.

    Attributes:
        status: the status to store instead of the requests' own.
        locking: in a transaction: read stored keys with a lock; without it the transaction may see old rows.
        wait_s: the longest wait of the INSERT for a lock, in seconds; None: that of the checker's own connections.
    """

    status: KeyStatus | None = None
    locking: bool = False
    wait_s: float | None = None


AUTOCOMMITTED: Final = ClaimMode()
AT_ONCE: Final = ClaimMode(wait_s=0.0)


class Claiming:
    """The claims of one key table.

    Args:
        dialect: the properties of the database.
        sql: the table's statements.
        failures: the table of the keys' failures.
    """

    def __init__(self, dialect: SqlDialect, sql: Statements, failures: FailureTable) -> None:
        self._dialect = dialect
        self._sql = sql
        self._failures = failures

    def claim(
        self, connection: DriverConnection, requests: Sequence[ClaimRequest], mode: ClaimMode = AUTOCOMMITTED
    ) -> list[Decision]:
        """Claim different keys; decisions in the order of the requests.

        Args:
            connection: a driver connection, in autocommit or in a transaction.
            requests: at most one for each key.
            mode: autocommit, or the options of a transaction.
        """
        if len(requests) == 1 or (mode.status is None and len({request.status for request in requests}) > 1):
            return [self.claim_one(connection, request, mode) for request in requests]
        decisions: dict[bytes, Decision] = {}
        # Sorted, so that two batches lock their common keys in the same order and do not deadlock.
        in_order = sorted(requests, key=lambda request: request.key.hash)
        for start in range(0, len(in_order), MAX_ROWS):
            part = in_order[start : start + MAX_ROWS]
            rows = self._insert(connection, part, mode, decisions)
            left = [request for request in part if request.key.hash not in decisions]
            if free := [request for request in left if _is_free(rows.get(request.key.hash))]:
                self._delete_free(connection, free)
                rows |= self._insert(connection, free, mode, decisions)
            for request in left:
                hashed = request.key.hash
                if hashed not in decisions:
                    row = rows.get(hashed)
                    decision = row and self._judge(connection, request, row, mode)
                    # No row or no decision: the key was released or taken over between the two statements.
                    decisions[hashed] = decision or self.claim_one(connection, request, mode)
            if free:
                counts = self._failures.attempts_of(connection, [request.key for request in free])
                for request in free:
                    hashed = request.key.hash
                    decisions[hashed] = known(decisions[hashed], request, counts.get(hashed, 0))
        return [decisions[request.key.hash] for request in requests]

    def claim_one(
        self, connection: DriverConnection, request: ClaimRequest, mode: ClaimMode = AUTOCOMMITTED
    ) -> Decision:
        """`claim` for one key."""
        key = request.key
        insert = self._sql.insert(1, mode.status or request.status, mode.wait_s, in_transaction=mode.locking)
        text = self._dialect.storable(connection, key.text)
        params = (key.hash, text, request.owner, request.fingerprint)
        waited = False
        for _ in range(_ROUNDS):
            fence = self._insert_one(connection, insert, params)
            if fence:
                decision: Decision | None = _acquired(request, fence)
            else:
                rows = query(connection, self._sql.read(1, locking=mode.locking), (key.hash,))
                waited = waited or _is_free(rows[0] if rows else None)
                decision = self._judge(connection, request, rows[0], mode) if rows else None
            if decision:
                failed = self._failures.attempts(connection, key) if waited and decision.claim else 0
                return known(decision, request, failed) if waited else decision
        return Decision(Verdict.IN_PROGRESS, retry_after_s=_CONTENDED_RETRY_S)

    def _insert_one(self, connection: DriverConnection, statement: str, params: Sequence[Any]) -> int | None:
        """One INSERT of one row. Returns its fence, if the answer shows that the row is new."""
        match self._dialect.conflict:
            case Conflict.RETURNS_NEW:
                rows = query(connection, statement, params)
                # If the key existed, the answer is empty or one row of NULLs.
                return rows[0][1] if rows else None
            case Conflict.RETURNS_ALL:
                return insert_id(connection, statement, params)
            case Conflict.SILENT:
                execute(connection, statement, params)
                return None

    def _insert(
        self,
        connection: DriverConnection,
        requests: Sequence[ClaimRequest],
        mode: ClaimMode,
        decisions: dict[bytes, Decision],
    ) -> dict[bytes, Row]:
        """One INSERT. Adds the acquired keys to `decisions`; returns the rows of the others, by key hash."""
        by_hash = {request.key.hash: request for request in requests}
        params: list[Any] = []
        for request in requests:
            key = request.key
            text = self._dialect.storable(connection, key.text)
            params += (key.hash, text, request.owner, request.fingerprint)
        status = mode.status or requests[0].status
        statement = self._sql.insert(len(requests), status, mode.wait_s, in_transaction=mode.locking)
        if self._dialect.conflict is Conflict.SILENT:
            execute(connection, statement, params)
        elif self._dialect.conflict is Conflict.RETURNS_NEW:
            for hashed, fence, *_ in query(connection, statement, params):
                if hashed is not None:
                    request = by_hash.pop(bytes(hashed))
                    decisions[request.key.hash] = _acquired(request, fence)
        elif fence := insert_id(connection, statement, params):
            decisions.update((hashed, _acquired(request, fence)) for hashed, request in by_hash.items())
            return {}
        if not by_hash:
            return {}
        read = self._sql.read(len(by_hash), locking=mode.locking)
        return {bytes(row[0]): row for row in query(connection, read, list(by_hash), many=len(by_hash) > 1)}

    def _judge(
        self, connection: DriverConnection, request: ClaimRequest, row: Row, mode: ClaimMode
    ) -> Decision | None:
        """Judge a stored key, and carry out the change; None: the row changed meanwhile, so claim again."""
        stored = self._stored(connection, request, row)
        if stored.free:
            self._delete_free(connection, [request])
            return None
        judged = judge(stored, request)
        if judged.change is Change.NONE:
            return judged.decision
        if judged.change is Change.PARK:
            # The reason is stored first: after a crash between the statements no dead key lacks one.
            self._failures.explain(connection, request.key, UNKNOWN_EFFECT)
            changed = execute(connection, self._sql.park, (request.key.hash, stored.owner))
        else:
            statement = self._sql.take_over(mode.status or request.status)
            params = (request.owner, request.fingerprint, request.key.hash, stored.owner)
            changed = execute(connection, statement, params)
        return judged.decision if changed == 1 else None

    def _delete_free(self, connection: DriverConnection, requests: Sequence[ClaimRequest]) -> None:
        hashes = [request.key.hash for request in requests]
        statement = self._sql.delete_free(len(hashes))
        execute(connection, statement, (*hashes, NOBODY), many=len(hashes) > 1)

    def _stored(self, connection: DriverConnection, request: ClaimRequest, row: Row) -> StoredKey:
        _, status, owner, fence, update_at, lease_until, fingerprint, result, now = row
        found = KeyStatus(status)
        dead = found is KeyStatus.DEAD
        return StoredKey(
            status=found,
            owner=bytes(owner),
            fence=fence,
            rest_s=float("inf") if lease_until is None else (lease_until - now) / MICROSECONDS,
            fingerprint=None if fingerprint is None else bytes(fingerprint),
            result=None if result is None else bytes(result),
            reason=self._failures.reason(connection, request.key) if dead else None,
            lapsed=_was_taken_over(fence, update_at),
        )


def _was_taken_over(fence: int, update_at: int) -> bool:
    """Whether the owner of a key in progress took over a lapsed claim.

    An INSERT stores one reading of the clock as the fence and as `update_at`. A take-over adds 1 to the fence. A later
    change moves `update_at` too, so this says nothing about a key that is final.
    """
    return fence != update_at


def _is_free(row: Row | None) -> bool:
    """Whether the backoff of a key that failed is over: `StoredKey.free` of a row."""
    if row is None or not KeyStatus(row[1]).in_progress or bytes(row[2]) != NOBODY:
        return False
    return bool(row[5] < row[8])


def _acquired(request: ClaimRequest, fence: int) -> Decision:
    return Decision(Verdict.ACQUIRED, Claim(request.key, fence, request.owner))
