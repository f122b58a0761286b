"""KeyTable: the claim protocol as SQL, on the caller's driver connection.

In autocommit each call is final (SqlChecker); in a transaction it is committed or rolled back with it
(TransactionalSqlChecker). No write relies on an earlier read: each repeats its condition, and its row count decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from idempotent.checkers.durations import MICROSECONDS, Durations
from idempotent.checkers.judging import Change, StoredKey, judge, known, stored_deaths
from idempotent.checkers.sql.failures import FailedAttempt, FailureTable
from idempotent.checkers.sql.statements import Statements
from idempotent.claims import (
    NOBODY,
    UNKNOWN_EFFECT,
    Claim,
    ClaimRequest,
    Completion,
    Decision,
    KeyStatus,
    Released,
    Verdict,
)
from idempotent.logs import EventLog
from idempotent.observe.counting import CountEvent
from idempotent.observe.events import Event
from idempotent.observe.log_lines import about_key
from idempotent.stores.sql.cursor import DriverConnection, Row, execute, insert_id, query, query_as_is
from idempotent.stores.sql.dialects import MAX_ROWS, Conflict, SqlDialect
from idempotent.values import changed

log = EventLog(__name__)
PART_BYTES: Final = 200_000
"""The results in one statement, in bytes, if there is more than one. The drivers of MySQL send each byte as two."""
_REST_BYTES: Final = 1000
_ROUNDS: Final = 4
_CONTENDED_RETRY_S: Final = 0.1
# Python 3.11 takes as long to look up an enum's member as to create a small object.
_STATUS: Final = {int(status): status for status in KeyStatus}
_DEAD: Final = KeyStatus.DEAD
_ACQUIRED: Final = Verdict.ACQUIRED
_NONE: Final = Change.NONE


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


class KeyTable:
    """One key table and its table of failures.

    Args:
        dialect: the properties of the database.
        table: validated name of the key table.
        durations: the lease of a claim, and how long keys are remembered.
        count: counts a result that is not stored.
        waits_briefly: see `Statements`.
    """

    def __init__(
        self,
        dialect: SqlDialect,
        table: str,
        durations: Durations,
        count: CountEvent,
        *,
        waits_briefly: bool = False,
    ) -> None:
        self._dialect = dialect
        self._count = count
        self._sql = Statements(dialect, table, durations, waits_briefly=waits_briefly)
        self.failures: Final = FailureTable(dialect, table, durations.retention_us)

    def claim(
        self, connection: DriverConnection, requests: Sequence[ClaimRequest], mode: ClaimMode = AUTOCOMMITTED
    ) -> list[Decision]:
        """Claim different keys; decisions in the order of the requests.

        Args:
            connection: a driver connection, in autocommit or in a transaction.
            requests: at most one for each key.
            mode: autocommit, or the options of a transaction.
        """
        if len(requests) == 1 or (mode.status is None and len({each.status for each in requests}) > 1):
            return [self.claim_one(connection, request, mode) for request in requests]
        decisions: dict[bytes, Decision] = {}
        # Sorted, so that two batches lock their common keys in the same order and do not deadlock.
        in_order = sorted(requests, key=lambda request: request.key.hash)
        for start in range(0, len(in_order), MAX_ROWS):
            decisions |= self._claim_part(connection, in_order[start : start + MAX_ROWS], mode)
        return [decisions[request.key.hash] for request in requests]

    def _claim_part(
        self, connection: DriverConnection, requests: Sequence[ClaimRequest], mode: ClaimMode
    ) -> dict[bytes, Decision]:
        """`claim` for as many keys as one INSERT takes, by key hash."""
        decisions, stored = self._insert(connection, requests, mode)
        free = [each for each in requests if each.key.hash in stored and stored[each.key.hash].free]
        if free:
            self._delete_free(connection, free)
            acquired, taken = self._insert(connection, free, mode)
            decisions |= acquired
            stored |= taken
        for request in requests:
            hashed = request.key.hash
            if hashed not in decisions:
                row = stored.get(hashed)
                decision = row and self._judge(connection, request, row, mode)
                # No row or no decision: the key was released or taken over between the two statements.
                decisions[hashed] = decision or self.claim_one(connection, request, mode)
        if free:
            counts = self.failures.attempts_of(connection, [request.key for request in free])
            for request in free:
                hashed = request.key.hash
                decisions[hashed] = known(decisions[hashed], request, counts.get(hashed, 0))
        return decisions

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
                stored = self._read(connection, [request], mode).get(key.hash)
                waited = waited or (stored is not None and stored.free)
                decision = self._judge(connection, request, stored, mode) if stored else None
            if decision:
                failed = self.failures.last(connection, key)[0] if waited and decision.claim else 0
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
        self, connection: DriverConnection, requests: Sequence[ClaimRequest], mode: ClaimMode
    ) -> tuple[dict[bytes, Decision], dict[bytes, StoredKey]]:
        """One INSERT. Returns what was decided on the new keys, and the others as they are stored, by key hash."""
        by_hash = {request.key.hash: request for request in requests}
        params: list[Any] = []
        for request in requests:
            key = request.key
            text = self._dialect.storable(connection, key.text)
            params += (key.hash, text, request.owner, request.fingerprint)
        status = mode.status or requests[0].status
        statement = self._sql.insert(len(requests), status, mode.wait_s, in_transaction=mode.locking)
        acquired: dict[bytes, Decision] = {}
        if self._dialect.conflict is Conflict.SILENT:
            execute(connection, statement, params)
        elif self._dialect.conflict is Conflict.RETURNS_NEW:
            for hashed, fence, *_ in query(connection, statement, params):
                if hashed is not None:
                    request = by_hash.pop(bytes(hashed))
                    acquired[request.key.hash] = _acquired(request, fence)
        elif fence := insert_id(connection, statement, params):
            return {hashed: _acquired(request, fence) for hashed, request in by_hash.items()}, {}
        return acquired, self._read(connection, list(by_hash.values()), mode) if by_hash else {}

    def _read(
        self, connection: DriverConnection, requests: Sequence[ClaimRequest], mode: ClaimMode
    ) -> dict[bytes, StoredKey]:
        """The stored ones of these keys, by key hash, without the reasons of those that are DEAD.

        In autocommit a proxy may ask a replica that lags. What is done to a key of another owner has conditions of its
        own, so an old row does no harm; one that is missing, or does not show that it is this owner's, is read again.
        """
        hashes = [request.key.hash for request in requests]
        statement, many = self._sql.read(len(hashes), locking=mode.locking), len(hashes) > 1
        if not mode.locking:
            found = _by_hash(query_as_is(connection, statement, hashes, many=many))
            mine = {stored.owner for stored in found.values()} <= {request.owner for request in requests}
            if len(found) == len(hashes) and (mine or self._dialect.conflict is not Conflict.SILENT):
                return found
        return _by_hash(query(connection, statement, hashes, many=many))

    def _judge(
        self, connection: DriverConnection, request: ClaimRequest, stored: StoredKey, mode: ClaimMode
    ) -> Decision | None:
        """Judge a stored key, and carry out the change; None: the row changed meanwhile, so claim again."""
        if stored.free:
            self._delete_free(connection, [request])
            return None
        if stored.status is _DEAD:
            stored = changed(stored, reason=self.failures.reason(connection, request.key))
        judged = judge(stored, request)
        if judged.change is _NONE:
            return judged.decision
        if judged.change is Change.PARK:
            # The reason is stored first: after a crash between the statements no dead key lacks one.
            self.failures.explain(connection, request.key, UNKNOWN_EFFECT)
            rows = execute(connection, self._sql.park, (request.key.hash, stored.owner))
        else:
            statement = self._sql.take_over(mode.status or request.status)
            params = (request.owner, request.fingerprint, request.key.hash, stored.owner)
            rows = execute(connection, statement, params)
        return judged.decision if rows == 1 else None

    def _delete_free(self, connection: DriverConnection, requests: Sequence[ClaimRequest]) -> None:
        hashes = [request.key.hash for request in requests]
        statement = self._sql.delete_free(len(hashes))
        execute(connection, statement, (*hashes, NOBODY), many=len(hashes) > 1)

    def complete(self, connection: DriverConnection, completion: Completion) -> bool:
        """Make a key DONE if the claim owns it."""
        hashed = completion.claim.key.hash
        completion = self._storable(connection, completion)
        if completion.result is None:
            return execute(connection, self._sql.complete, (hashed, completion.claim.owner)) == 1
        params = (completion.result, hashed, completion.claim.owner)
        return execute(connection, self._sql.complete_with_result, params) == 1

    def complete_many(self, connection: DriverConnection, completions: Sequence[Completion]) -> list[bool]:
        """`complete` for many keys, one statement for each part (see `parts_of`)."""
        lost: set[tuple[bytes, bytes]] = set()
        for part in parts_of(completions):
            group = [c if c.result is None else self._storable(connection, c) for c in part]
            hashes = [completion.claim.key.hash for completion in group]
            owners = list({completion.claim.owner for completion in group})
            results = [(h, c.result) for h, c in zip(hashes, group, strict=True) if c.result is not None]
            statement = self._sql.complete_group(len(hashes), len(owners), len(results))
            params = (*chain.from_iterable(results), *hashes, *owners)
            if execute(connection, statement, params, many=len(hashes) > 1) < len(hashes):
                rows = self.owners(connection, hashes)
                done = {(h, owner) for h, owner, status in rows if status == KeyStatus.DONE}
                lost |= {(c.claim.key.hash, c.claim.owner) for c in group} - done
        return [not lost or (c.claim.key.hash, c.claim.owner) not in lost for c in completions]

    def _storable(self, connection: DriverConnection, completion: Completion) -> Completion:
        """The completion, without its result if the server would refuse a statement that contains it.

        The effect has happened, or is about to be committed: it must not fail for the sake of its result.
        """
        size = len(completion.result or b"")
        if size <= PART_BYTES or self._dialect.statement_limit is None:
            return completion
        if connection.statement_limit is None:
            ((limit,),) = query(connection, self._dialect.statement_limit)
            connection.statement_limit = int(limit)
        if 2 * size + _REST_BYTES <= connection.statement_limit:
            return completion
        key = completion.claim.key
        self._count(key.consumer, Event.RESULT_NOT_STORED)
        why = f"{size} bytes; the server's max_allowed_packet is {connection.statement_limit}"
        log.warning("result_not_stored", extra={**about_key(key), "why": why})
        return changed(completion, result=None)

    def renew(self, connection: DriverConnection, claims: Sequence[Claim]) -> list[bool]:
        """Renew the leases of owned claims, one statement for up to 1,000. Returns which are still owned."""
        lost: set[tuple[bytes, bytes]] = (
            set()
        )  # a row with one of these owners is a claim in flight of this process
        for start in range(0, len(claims), MAX_ROWS):
            part = claims[start : start + MAX_ROWS]
            hashes = sorted({claim.key.hash for claim in part})
            owners = sorted({claim.owner for claim in part})
            statement = self._sql.renew(len(hashes), len(owners))
            if execute(connection, statement, (*hashes, *owners), many=len(hashes) > 1) < len(part):
                pairs = {(claim.key.hash, claim.owner) for claim in part}
                lost |= pairs - self._in_progress(connection, hashes)
        return [(claim.key.hash, claim.owner) not in lost for claim in claims]

    def delete(self, connection: DriverConnection, claims: Sequence[Claim]) -> list[bool]:
        """Delete owned keys in progress without counting an attempt, one statement for each part (see `parts_of`)."""
        freed: set[tuple[bytes, bytes]] = set()
        for group in parts_of([Completion(claim) for claim in claims]):
            hashes = [completion.claim.key.hash for completion in group]
            owners = list({completion.claim.owner for completion in group})
            before = self._in_progress(connection, hashes) if len(hashes) > 1 else None
            statement = self._sql.delete_group(len(hashes), len(owners))
            deleted = execute(connection, statement, (*hashes, *owners), many=len(hashes) > 1)
            pairs = {(c.claim.key.hash, c.claim.owner) for c in group}
            if deleted == len(hashes):
                freed |= pairs
            elif before is not None and deleted:
                freed |= pairs & before
        return [(claim.key.hash, claim.owner) in freed for claim in claims]

    def fail(self, connection: DriverConnection, failed: FailedAttempt) -> Released:
        """Count an attempt at an owned key, and free it, keep it or make it DEAD. Needs a transaction."""
        mine = (failed.claim.key.hash, failed.claim.owner)
        if execute(connection, self._sql.lock_mine, mine) != 1:
            return self._counted_before(connection, failed)
        self.failures.count(connection, failed)
        if failed.released.dead:
            execute(connection, self._sql.kill_mine, mine)
        elif delay_us := failed.failure.delay_us(failed.attempts):
            execute(connection, self._sql.hold_mine, (NOBODY, delay_us, *mine))
        else:
            execute(connection, self._sql.delete_mine, mine)
        return failed.released

    def fail_free(self, connection: DriverConnection, failed: FailedAttempt) -> Released:
        """Count an attempt at a key whose claim was rolled back. After the last one, `mark_free_key_dead` follows.

        Counts nothing if another delivery has processed the message since, or has used up its attempts, whose reason is
        kept; or if the claim was made before the backoff of another failure was over: it waited for the transaction
        that failed. Needs a transaction of its own.
        """
        statuses = {status for *_, status in self.owners(connection, [failed.claim.key.hash])}
        if KeyStatus.DONE in statuses:
            return self._counted_before(connection, failed)
        attempts, failed_at = self.failures.last(connection, failed.claim.key)
        if KeyStatus.DEAD in statuses or attempts >= failed.failure.max_attempts:
            return Released(owned=True, attempts=attempts, dead=True)
        early = failed.failure.backoff and failed.claim.fence < failed_at + failed.failure.shortest_us(
            attempts
        )
        self.failures.count(connection, failed, more=0 if early else 1)
        return failed.released

    def hold(self, connection: DriverConnection, failed: FailedAttempt) -> None:
        """Let nobody claim a key whose claim was rolled back before its backoff is over.

        Raises:
            StoreBusyError: another delivery holds the key.
        """
        delay_us = failed.failure.delay_us(failed.attempts)
        text = self._dialect.storable(connection, failed.claim.key.text)
        params: list[object] = [failed.claim.key.hash, text, NOBODY, delay_us]
        if self._dialect.name == "mysql":
            params += (NOBODY, delay_us, NOBODY, NOBODY)
        execute(connection, self._sql.hold, params)

    def mark_free_key_dead(self, connection: DriverConnection, claim: Claim) -> None:
        """Make a free key DEAD, without waiting for another claim of it. Needs a transaction of its own."""
        mode = ClaimMode(KeyStatus.DEAD, locking=True, wait_s=0.0)
        self.claim(connection, [ClaimRequest(claim.key)], mode)

    def _counted_before(self, connection: DriverConnection, failed: FailedAttempt) -> Released:
        """The answer of an earlier try that was lost; else another delivery has the key."""
        if failed.noted_us == self.failures.last(connection, failed.claim.key)[1]:
            return failed.released
        return Released(owned=False)

    def mark_committed_dead(self, connection: DriverConnection, claim: Claim, reason: str) -> Released:
        """Make an owned key DEAD, even if it is DONE. Needs a transaction."""
        if execute(connection, self._sql.kill_mine, (claim.key.hash, claim.owner)) != 1:
            return Released(owned=False)
        attempts = self.failures.explain(connection, claim.key, reason)
        return Released(owned=True, attempts=attempts, dead=True)

    def forget(self, connection: DriverConnection, claim: Claim) -> None:
        """Delete an owned key, even if it is DONE."""
        execute(connection, self._sql.forget_mine, (claim.key.hash, claim.owner))

    def owners(self, connection: DriverConnection, hashes: Sequence[bytes]) -> list[Row]:
        """(hash, owner, status) of each of these keys that is stored."""
        rows: list[Row] = []
        for start in range(0, len(hashes), MAX_ROWS):
            part = hashes[start : start + MAX_ROWS]
            found = query(connection, self._sql.owned(len(part)), part, many=len(part) > 1)
            rows.extend((bytes(hashed), bytes(owner), status) for hashed, owner, status in found)
        return rows

    def delete_expired(self, connection: DriverConnection, limit: int) -> int:
        """Delete at most `limit` expired keys: a SELECT without locks finds them, a DELETE by primary key follows."""
        deleted = 0
        for _ in range(0, limit, MAX_ROWS):
            found = query(connection, self._sql.expired, (min(limit - deleted, MAX_ROWS),))
            hashes = sorted(bytes(row[0]) for row in found)
            if not hashes:
                break
            deleted += execute(connection, self._sql.delete_expired(len(hashes)), hashes, many=True)
            self.failures.delete(connection, hashes, before_us=found[0][1])
        self.failures.delete_expired(connection, limit)
        return deleted

    def _in_progress(self, connection: DriverConnection, hashes: Sequence[bytes]) -> set[tuple[bytes, bytes]]:
        """(hash, owner) of each of these keys that is in progress."""
        return {row[:2] for row in self.owners(connection, hashes) if KeyStatus(row[2]).in_progress}


def _by_hash(rows: Sequence[Row]) -> dict[bytes, StoredKey]:
    return {bytes(row[0]): _stored(row) for row in rows}


def _stored(row: Row) -> StoredKey:
    _, status, owner, fence, update_at, lease_until, fingerprint, result, now = row
    found = _STATUS[status]
    return StoredKey(
        found,
        bytes(owner),
        fence,
        math.inf if lease_until is None else (lease_until - now) / MICROSECONDS,
        None if fingerprint is None else bytes(fingerprint),
        None if result is None else bytes(result),
        deaths=stored_deaths(found, bytes(owner), fence, update_at),
    )


def _acquired(request: ClaimRequest, fence: int) -> Decision:
    return Decision(_ACQUIRED, Claim(request.key, fence, request.owner))


def parts_of(completions: Sequence[Completion]) -> Iterator[list[Completion]]:
    """The completions in parts for one statement each: sorted by key, each key once.

    Such a statement names the keys and the owner tokens, not pairs of them. So a part has one token, or tokens of one
    claim each: a token that several claims share could otherwise complete the key of another claim.
    """
    owners: dict[bytes, list[Completion]] = {}
    for completion in sorted(completions, key=lambda each: each.claim.key.hash):
        owners.setdefault(completion.claim.owner, []).append(completion)
    single: list[Completion] = []
    for group in owners.values():
        if len(group) == 1:
            single += group
        else:
            yield from _cut(group)
    yield from _cut(single)


def _cut(group: Sequence[Completion]) -> Iterator[list[Completion]]:
    part: list[Completion] = []
    size = 0
    last = b""
    for completion in group:
        hashed, result = completion.claim.key.hash, completion.result
        more = 0 if result is None else len(result)
        if part and (hashed == last or size + more > PART_BYTES or len(part) == MAX_ROWS):
            yield part
            part, size = [], 0
        part.append(completion)
        size += more
        last = hashed
    if part:
        yield part
