"""Claiming: an INSERT decides who owns a key; what a stored key means is `judge`'s answer.

No method reads first and writes by what it read: every write repeats its condition, and its row count decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from idempotent.checkers.judging import Change, StoredKey, judge
from idempotent.checkers.sql.failures import FailureTable
from idempotent.checkers.sql.statements import MAX_ROWS, MICROSECONDS, Statements
from idempotent.claims import UNKNOWN_EFFECT, Claim, ClaimRequest, Decision, KeyStatus, Verdict
from idempotent.stores.sql.cursor import DriverConnection, Row, execute, insert_id, query
from idempotent.stores.sql.dialects import Conflict, SqlDialect

_ROUNDS: Final = 4
_CONTENDED_RETRY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class ClaimMode:
    """What differs between a claim in autocommit and a claim inside a transaction.

    Attributes:
        status: the status to store instead of the requests' own.
        locking: read other owners' rows with a lock, as a transaction must to see the newest.
        wait_s: the longest the INSERT waits for a lock, in seconds; None: the server's own limit.
    """

    status: KeyStatus | None = None
    locking: bool = False
    wait_s: float | None = None


AUTOCOMMITTED: Final = ClaimMode()


class Claiming:
    """The claims of one key table.

    Args:
        dialect: what differs between the databases.
        sql: the table's statements.
        failures: the table of failures beside it.
    """

    def __init__(self, dialect: SqlDialect, sql: Statements, failures: FailureTable) -> None:
        self._dialect = dialect
        self._sql = sql
        self._failures = failures

    def claim(
        self, connection: DriverConnection, requests: Sequence[ClaimRequest], how: ClaimMode = AUTOCOMMITTED
    ) -> list[Decision]:
        """Claim different keys; decisions in the order of the requests.

        Args:
            connection: a driver connection, in autocommit or in a transaction.
            requests: at most one for each key.
            how: what differs inside a transaction.
        """
        if len(requests) == 1 or (how.status is None and len({request.status for request in requests}) > 1):
            return [self.claim_one(connection, request, how) for request in requests]
        decisions: dict[bytes, Decision] = {}
        # Sorted, so that two batches lock their common keys in one order.
        in_order = sorted(requests, key=lambda request: request.key.hash)
        for start in range(0, len(in_order), MAX_ROWS):
            part = in_order[start : start + MAX_ROWS]
            rows = self._insert(connection, part, how, decisions)
            for request in part:
                hashed = request.key.hash
                if hashed not in decisions:
                    row = rows.get(hashed)
                    decision = row and self._judge(connection, request, row, how)
                    # Without one it was released or taken over by others meanwhile.
                    decisions[hashed] = decision or self.claim_one(connection, request, how)
        return [decisions[request.key.hash] for request in requests]

    def claim_one(
        self, connection: DriverConnection, request: ClaimRequest, how: ClaimMode = AUTOCOMMITTED
    ) -> Decision:
        """`claim` for one key."""
        key = request.key
        insert = self._sql.insert(1, how.status or request.status, how.wait_s)
        params = (key.hash, key.text, request.owner, request.fingerprint)
        for _ in range(_ROUNDS):
            if fence := self._insert_one(connection, insert, params):
                return _acquired(request, fence)
            rows = query(connection, self._sql.read(1, locking=how.locking), (key.hash,))
            decision = self._judge(connection, request, rows[0], how) if rows else None
            if decision:
                return decision
        return Decision(Verdict.IN_PROGRESS, retry_after_s=_CONTENDED_RETRY_S)

    def _insert_one(self, connection: DriverConnection, statement: str, params: Sequence[Any]) -> int | None:
        """One INSERT of one row. Its fence, if that is known to be new."""
        match self._dialect.conflict:
            case Conflict.RETURNS_NEW:
                rows = query(connection, statement, params)
                # Without a new row the answer is empty, or a row of NULLs.
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
        how: ClaimMode,
        decisions: dict[bytes, Decision],
    ) -> dict[bytes, Row]:
        """One INSERT. Fills in what it acquired; returns the rows that were there before, by key hash."""
        by_hash = {request.key.hash: request for request in requests}
        params: list[Any] = []
        for request in requests:
            params += (request.key.hash, request.key.text, request.owner, request.fingerprint)
        statement = self._sql.insert(len(requests), how.status or requests[0].status, how.wait_s)
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
        missing = list(by_hash)
        if not missing:
            return {}
        return self._bytes_keyed(
            query(
                connection, self._sql.read(len(missing), locking=how.locking), missing, many=len(missing) > 1
            )
        )

    @staticmethod
    def _bytes_keyed(rows: Iterable[Row]) -> dict[bytes, Row]:
        return {bytes(row[0]): row for row in rows}

    def _judge(
        self, connection: DriverConnection, request: ClaimRequest, row: Row, how: ClaimMode
    ) -> Decision | None:
        """What an existing row means to a request; None: the row changed under us, look again."""
        stored = self._stored(connection, request, row)
        judged = judge(stored, request)
        if judged.change is Change.NONE:
            return judged.decision
        if judged.change is Change.PARK:
            # First the reason: a crash in between must not leave a dead key without one.
            self._failures.note(connection, Claim(request.key), UNKNOWN_EFFECT, attempts=0)
            changed = execute(connection, self._sql.park, (request.key.hash, stored.owner))
        else:
            params = (
                how.status or request.status,
                request.owner,
                request.fingerprint,
                request.key.hash,
                stored.owner,
            )
            changed = execute(connection, self._sql.take_over, params)
        return judged.decision if changed == 1 else None

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
            # A fresh key has its fence from the clock that dated it.
            lapsed=fence != update_at,
        )


def _acquired(request: ClaimRequest, fence: int) -> Decision:
    return Decision(Verdict.ACQUIRED, Claim(request.key, fence, request.owner))
