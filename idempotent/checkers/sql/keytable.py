"""KeyTable: the claim protocol as SQL, on a driver connection that the caller chose.

In autocommit each call is final (SqlChecker); inside a transaction it commits or vanishes with it
(TransactionalSqlChecker). No method here reads first and writes by what it read: every write repeats its
condition, and its row count decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from idempotent.checkers.base import UNKNOWN_EFFECT
from idempotent.checkers.sql.failures import FailureTable
from idempotent.checkers.sql.statements import Statements
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
from idempotent.stores.sql.cursor import DriverConnection, Row, execute, insert_id, query
from idempotent.stores.sql.dialects import Conflict, SqlDialect
from idempotent.values import changed

MICROSECONDS: Final = 1_000_000
# 4 parameters a row: below SQLite's 32,766 and PostgreSQL's 65,535, and well inside a MySQL packet.
MAX_ROWS: Final = 1000
_ROUNDS: Final = 4
_CONTENDED_RETRY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Claiming:
    """What differs between a claim by itself and a claim inside a transaction.

    Attributes:
        status: the status to store instead of the requests' own.
        locking: read other owners' rows with a lock, as a transaction must to see the newest.
        wait_s: the longest the INSERT waits for a lock, in seconds; None: the server's own limit.
    """

    status: KeyStatus | None = None
    locking: bool = False
    wait_s: float | None = None


AUTOCOMMITTED: Final = Claiming()


class KeyTable:
    """One key table and the failures beside it.

    Args:
        dialect: what differs between the databases.
        table: validated name of the key table.
        lease_s: lease of a claim in seconds; None: claims do not lapse.
        retention_s: seconds a key is remembered.
    """

    def __init__(self, dialect: SqlDialect, table: str, *, lease_s: float | None, retention_s: float) -> None:
        """Make the statements."""
        lease_us = None if lease_s is None else max(int(lease_s * MICROSECONDS), 1)
        retention_us = max(int(retention_s * MICROSECONDS), 1)
        self._dialect = dialect
        self._sql = Statements(dialect, table, lease_us, retention_us)
        self.failures: Final = FailureTable(dialect, table, retention_us)

    def claim(
        self,
        connection: DriverConnection,
        requests: Sequence[ClaimRequest],
        how: Claiming = AUTOCOMMITTED,
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
        self, connection: DriverConnection, request: ClaimRequest, how: Claiming = AUTOCOMMITTED
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

    def complete(self, connection: DriverConnection, completion: Completion) -> bool:
        """Make a key DONE iff the claim owns it."""
        hashed = key_hash(completion.claim)
        if completion.result is None:
            return execute(connection, self._sql.complete, (hashed, completion.claim.owner)) == 1
        params = (completion.result, hashed, completion.claim.owner)
        return execute(connection, self._sql.complete_with_result, params) == 1

    def complete_many(self, connection: DriverConnection, completions: Sequence[Completion]) -> list[bool]:
        """`complete` for many keys, one statement for each owner token."""
        kept: set[tuple[bytes, bytes]] = set()
        for owner, group in _by_owner(completions):
            hashes = [key_hash(completion.claim) for completion in group]
            results = [(h, c.result) for h, c in zip(hashes, group, strict=True) if c.result is not None]
            statement = self._sql.complete_group(len(hashes), len(results))
            params = (*chain.from_iterable(results), *hashes, owner)
            if execute(connection, statement, params, many=len(hashes) > 1) == len(hashes):
                kept.update((hashed, owner) for hashed in hashes)
            else:
                kept |= {
                    (h, o) for h, o, status in self.owners(connection, hashes) if status == KeyStatus.DONE
                }
        return [(key_hash(completion.claim), completion.claim.owner) in kept for completion in completions]

    def renew(self, connection: DriverConnection, claims: Sequence[Claim]) -> list[bool]:
        """Move the end of the leases of owned claims, one statement for up to 1,000."""
        # Whatever row one of these tokens owns is this process's own and in flight, so the pairs need no matching.
        lost: set[tuple[bytes, bytes]] = set()
        for start in range(0, len(claims), MAX_ROWS):
            part = claims[start : start + MAX_ROWS]
            hashes = sorted({key_hash(claim) for claim in part})
            owners = sorted({claim.owner for claim in part})
            statement = self._sql.renew(len(hashes), len(owners))
            if execute(connection, statement, (*hashes, *owners), many=len(hashes) > 1) < len(part):
                pairs = {(key_hash(claim), claim.owner) for claim in part}
                lost |= pairs - self._in_progress(connection, hashes)
        return [(key_hash(claim), claim.owner) not in lost for claim in claims]

    def delete(self, connection: DriverConnection, claims: Sequence[Claim]) -> list[bool]:
        """Free owned keys without counting an attempt, one statement for each owner token."""
        freed: set[tuple[bytes, bytes]] = set()
        for owner, group in _by_owner([Completion(claim) for claim in claims]):
            hashes = [key_hash(completion.claim) for completion in group]
            before = self._in_progress(connection, hashes) if len(hashes) > 1 else None
            statement = self._sql.delete_group(len(hashes))
            deleted = execute(connection, statement, (*hashes, owner), many=len(hashes) > 1)
            pairs = {(hashed, owner) for hashed in hashes}
            if deleted == len(hashes):
                freed |= pairs
            elif before is not None and deleted:
                freed |= pairs & before
        return [(key_hash(claim), claim.owner) in freed for claim in claims]

    def fail(self, connection: DriverConnection, claim: Claim, failure: Failure) -> Released:
        """Count an attempt, and free, kill or keep the key, iff the claim owns it. Needs a transaction."""
        mine = (key_hash(claim), claim.owner)
        if execute(connection, self._sql.lock_mine, mine) != 1:
            return Released(owned=False)
        attempts = self.failures.note(connection, claim, failure.error)
        dead = failure.kills(attempts)
        if dead:
            execute(connection, self._sql.kill_mine, mine)
        elif not failure.keep_claim:
            execute(connection, self._sql.delete_mine, mine)
        return Released(owned=True, attempts=attempts, dead=dead)

    def fail_free(self, connection: DriverConnection, claim: Claim, failure: Failure) -> Released:
        """Count an attempt at a key whose claim was rolled back, and make it DEAD when they are used up.

        Nothing happens if somebody has the key by now. Needs a transaction of its own.
        """
        if self.owners(connection, [key_hash(claim)]):
            return Released(owned=False)
        attempts = self.failures.note(connection, claim, failure.error)
        dead = False
        if failure.kills(attempts) and claim.key:
            request = ClaimRequest(claim.key)
            decisions = self.claim(connection, [request], Claiming(KeyStatus.DEAD, locking=True, wait_s=0.0))
            dead = decisions[0].verdict is Verdict.ACQUIRED
        return Released(owned=True, attempts=attempts, dead=dead)

    def condemn(self, connection: DriverConnection, claim: Claim, reason: str) -> Released:
        """Make an owned key DEAD, finished or not. Needs a transaction."""
        if execute(connection, self._sql.kill_mine, (key_hash(claim), claim.owner)) != 1:
            return Released(owned=False)
        attempts = self.failures.note(connection, claim, reason, attempts=0)
        return Released(owned=True, attempts=attempts, dead=True)

    def forget(self, connection: DriverConnection, claim: Claim) -> None:
        """Delete an owned key, finished or not."""
        execute(connection, self._sql.forget_mine, (key_hash(claim), claim.owner))

    def owners(self, connection: DriverConnection, hashes: Sequence[bytes]) -> list[Row]:
        """(hash, owner, status) of the keys that exist."""
        rows: list[Row] = []
        for start in range(0, len(hashes), MAX_ROWS):
            part = hashes[start : start + MAX_ROWS]
            found = query(connection, self._sql.owned(len(part)), part, many=len(part) > 1)
            rows.extend((bytes(hashed), bytes(owner), status) for hashed, owner, status in found)
        return rows

    def delete_expired(self, connection: DriverConnection, limit: int) -> int:
        """Delete at most `limit` keys past their expiry: found without locks, deleted by primary key."""
        deleted = 0
        for _ in range(0, limit, MAX_ROWS):
            found = query(connection, self._sql.expired, (min(limit - deleted, MAX_ROWS),))
            hashes = sorted(bytes(row[0]) for row in found)
            if not hashes:
                break
            deleted += execute(connection, self._sql.delete_expired(len(hashes)), hashes, many=True)
        self.failures.delete_expired(connection, limit)
        return deleted

    def _in_progress(self, connection: DriverConnection, hashes: Sequence[bytes]) -> set[tuple[bytes, bytes]]:
        """(hash, owner) of the keys that a claim holds."""
        rows = self.owners(connection, hashes)
        return {(hashed, owner) for hashed, owner, status in rows if KeyStatus(status).in_progress}

    def _insert_one(self, connection: DriverConnection, statement: str, params: Sequence[Any]) -> int | None:
        """One INSERT of one row. Its fence, if that is known to be new."""
        match self._dialect.conflict:
            case Conflict.RETURNS_NEW:
                rows = query(connection, statement, params)
                # Without a new row there are none, or NULLs.
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
        how: Claiming,
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
                connection,
                self._sql.read(len(missing), locking=how.locking),
                missing,
                many=len(missing) > 1,
            )
        )

    @staticmethod
    def _bytes_keyed(rows: Iterable[Row]) -> dict[bytes, Row]:
        return {bytes(row[0]): row for row in rows}

    def _judge(
        self, connection: DriverConnection, request: ClaimRequest, row: Row, how: Claiming
    ) -> Decision | None:
        """What an existing row means to a request; None: the row changed under us, look again."""
        _, stored, owner, fence, update_at, lease_until, fingerprint, result, now = row
        found = KeyStatus(stored)
        if bytes(owner) == request.owner:
            # The answer to an earlier try was lost. A fresh key has its fence from the clock that dated it.
            return changed(_acquired(request, fence), lapsed=fence != update_at)
        content = None if fingerprint is None else bytes(fingerprint)
        if found is KeyStatus.DONE:
            stored_result = None if result is None else bytes(result)
            return Decision(Verdict.DUPLICATE, result=stored_result, fingerprint=content)
        if found is KeyStatus.DEAD:
            reason = self.failures.reason(connection, request.key)
            return Decision(Verdict.DEAD, reason=reason, fingerprint=content)
        rest_s = float("inf") if lease_until is None else (lease_until - now) / MICROSECONDS
        waiting = Decision(Verdict.IN_PROGRESS, retry_after_s=rest_s, fingerprint=content)
        if rest_s >= 0:
            return waiting
        other_content = None not in (request.fingerprint, content) and request.fingerprint != content
        if request.on_lapsed is Lapsed.LEAVE or other_content:
            return changed(waiting, retry_after_s=0.0, lapsed=True)
        if request.on_lapsed is Lapsed.PARK:
            return self._park(connection, request, bytes(owner))
        params = (
            how.status or request.status,
            request.owner,
            request.fingerprint,
            request.key.hash,
            bytes(owner),
        )
        if execute(connection, self._sql.take_over, params) != 1:
            return None
        alone = found is not KeyStatus.IN_PROGRESS_GROUP
        return changed(_acquired(request, fence + 1), lapsed=True, alone=alone)

    def _park(self, connection: DriverConnection, request: ClaimRequest, owner: bytes) -> Decision | None:
        # First the reason: a crash in between must not leave a dead key without one.
        self.failures.note(connection, Claim(request.key), UNKNOWN_EFFECT, attempts=0)
        if execute(connection, self._sql.park, (request.key.hash, owner)) != 1:
            return None
        return Decision(Verdict.DEAD, reason=UNKNOWN_EFFECT)


def key_hash(claim: Claim) -> bytes:
    """The key hash of a claim that has a key."""
    assert claim.key is not None, "a claim of no key never reaches the table"
    return claim.key.hash


def _acquired(request: ClaimRequest, fence: int) -> Decision:
    return Decision(Verdict.ACQUIRED, Claim(request.key, fence, request.owner))


def _by_owner(completions: Sequence[Completion]) -> Iterable[tuple[bytes, list[Completion]]]:
    groups: dict[bytes, list[Completion]] = {}
    for completion in sorted(completions, key=lambda completion: key_hash(completion.claim)):
        groups.setdefault(completion.claim.owner, []).append(completion)
    return groups.items()
