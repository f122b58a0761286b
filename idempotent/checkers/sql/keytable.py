"""KeyTable: the claim protocol as SQL, on the caller's driver connection.

In autocommit each call is final (SqlChecker); in a transaction it is committed or rolled back with it
(TransactionalSqlChecker). No write relies on an earlier read: each repeats its condition, and its row count decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from idempotent.checkers.sql.claiming import Claiming, ClaimMode
from idempotent.checkers.sql.failures import FailedAttempt, FailureTable
from idempotent.checkers.sql.statements import MAX_ROWS, Durations, Statements
from idempotent.claims import NOBODY, Claim, ClaimRequest, Completion, KeyStatus, Released
from idempotent.logs import EventLog
from idempotent.observe.counting import CountEvent
from idempotent.observe.events import Event
from idempotent.observe.log_lines import about_key
from idempotent.stores.sql.cursor import DriverConnection, Row, execute, query
from idempotent.stores.sql.dialects import SqlDialect
from idempotent.values import changed

log = EventLog(__name__)
PART_BYTES: Final = 200_000
"""The results in one statement, in bytes, if there is more than one. The drivers of MySQL send each byte as two."""
_REST_BYTES: Final = 1000


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
        self.claiming: Final = Claiming(dialect, self._sql, self.failures)

    def complete(self, connection: DriverConnection, completion: Completion) -> bool:
        """Make a key DONE if the claim owns it."""
        hashed = key_hash(completion.claim)
        completion = storable(self._dialect, connection, completion, self._count)
        if completion.result is None:
            return execute(connection, self._sql.complete, (hashed, completion.claim.owner)) == 1
        params = (completion.result, hashed, completion.claim.owner)
        return execute(connection, self._sql.complete_with_result, params) == 1

    def complete_many(self, connection: DriverConnection, completions: Sequence[Completion]) -> list[bool]:
        """`complete` for many keys, one statement for each part (see `parts_of`)."""
        lost: set[tuple[bytes, bytes]] = set()
        for part in parts_of(completions):
            group = [
                c if c.result is None else storable(self._dialect, connection, c, self._count) for c in part
            ]
            hashes = [key_hash(completion.claim) for completion in group]
            owners = _owners(group)
            results = [(h, c.result) for h, c in zip(hashes, group, strict=True) if c.result is not None]
            statement = self._sql.complete_group(len(hashes), len(owners), len(results))
            params = (*chain.from_iterable(results), *hashes, *owners)
            if execute(connection, statement, params, many=len(hashes) > 1) < len(hashes):
                rows = self.owners(connection, hashes)
                done = {(h, owner) for h, owner, status in rows if status == KeyStatus.DONE}
                lost |= {(key_hash(c.claim), c.claim.owner) for c in group} - done
        return [not lost or (key_hash(c.claim), c.claim.owner) not in lost for c in completions]

    def renew(self, connection: DriverConnection, claims: Sequence[Claim]) -> list[bool]:
        """Renew the leases of owned claims, one statement for up to 1,000. Returns which are still owned."""
        # A row with one of these owners is a claim in flight of this process: no need to match hashes with owners.
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

    def excuse(self, connection: DriverConnection, claims: Sequence[Claim]) -> None:
        """Let the lapse of owned claims count no attempt, one statement for up to 1,000."""
        for start in range(0, len(claims), MAX_ROWS):
            part = claims[start : start + MAX_ROWS]
            hashes = sorted({key_hash(claim) for claim in part})
            owners = sorted({claim.owner for claim in part})
            execute(connection, self._sql.excuse(len(hashes), len(owners)), (*hashes, *owners), many=True)

    def delete(self, connection: DriverConnection, claims: Sequence[Claim]) -> list[bool]:
        """Delete owned keys in progress without counting an attempt, one statement for each part (see `parts_of`)."""
        freed: set[tuple[bytes, bytes]] = set()
        for group in parts_of([Completion(claim) for claim in claims]):
            hashes = [key_hash(completion.claim) for completion in group]
            owners = _owners(group)
            before = self._in_progress(connection, hashes) if len(hashes) > 1 else None
            statement = self._sql.delete_group(len(hashes), len(owners))
            deleted = execute(connection, statement, (*hashes, *owners), many=len(hashes) > 1)
            pairs = {(key_hash(completion.claim), completion.claim.owner) for completion in group}
            if deleted == len(hashes):
                freed |= pairs
            elif before is not None and deleted:
                freed |= pairs & before
        return [(key_hash(claim), claim.owner) in freed for claim in claims]

    def fail(self, connection: DriverConnection, failed: FailedAttempt) -> Released:
        """Count an attempt at an owned key, and free it, keep it or make it DEAD. Needs a transaction."""
        mine = (key_hash(failed.claim), failed.claim.owner)
        if execute(connection, self._sql.lock_mine, mine) != 1:
            return self._counted_before(connection, failed)
        self.failures.count(connection, failed)
        if failed.released.dead:
            execute(connection, self._sql.kill_mine, mine)
        elif not failed.failure.keep_claim:
            if delay_us := failed.failure.delay_us(failed.attempts):
                execute(connection, self._sql.hold_mine, (NOBODY, delay_us, *mine))
            else:
                execute(connection, self._sql.delete_mine, mine)
        return failed.released

    def fail_free(self, connection: DriverConnection, failed: FailedAttempt) -> Released:
        """Count an attempt at a key whose claim was rolled back. After the last one, `mark_free_key_dead` follows.

        Counts nothing if another delivery has processed the message since, or if the claim was made before the backoff
        of another failure was over: it waited for the transaction that failed. Needs a transaction of its own.
        """
        if any(status == KeyStatus.DONE for *_, status in self.owners(connection, [key_hash(failed.claim)])):
            return self._counted_before(connection, failed)
        attempts, failed_at = self.failures.last(connection, failed.claim.key)
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
        self.claiming.claim(connection, [ClaimRequest(claim.key)], mode)

    def _counted_before(self, connection: DriverConnection, failed: FailedAttempt) -> Released:
        """The answer of an earlier try that was lost; else another delivery has the key."""
        if failed.attempts == self.failures.attempts(connection, failed.claim.key):
            return failed.released
        return Released(owned=False)

    def mark_committed_dead(self, connection: DriverConnection, claim: Claim, reason: str) -> Released:
        """Make an owned key DEAD, even if it is DONE. Needs a transaction."""
        if execute(connection, self._sql.kill_mine, (key_hash(claim), claim.owner)) != 1:
            return Released(owned=False)
        attempts = self.failures.explain(connection, claim.key, reason)
        return Released(owned=True, attempts=attempts, dead=True)

    def forget(self, connection: DriverConnection, claim: Claim) -> None:
        """Delete an owned key, even if it is DONE."""
        execute(connection, self._sql.forget_mine, (key_hash(claim), claim.owner))

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
        rows = self.owners(connection, hashes)
        return {(hashed, owner) for hashed, owner, status in rows if KeyStatus(status).in_progress}


def _owners(part: Sequence[Completion]) -> list[bytes]:
    """The owner tokens of a part: one, or one for each completion."""
    if part[0].claim.owner == part[-1].claim.owner:
        return [part[0].claim.owner]
    return [completion.claim.owner for completion in part]


def key_hash(claim: Claim) -> bytes:
    """The key hash of a claim that has a key."""
    return claim.key.hash


def parts_of(completions: Sequence[Completion]) -> Iterator[list[Completion]]:
    """The completions in parts for one statement each: sorted by key, each key once.

    Such a statement names the keys and the owner tokens, not pairs of them. So a part has one token, or tokens of one
    claim each: a token that several claims share could otherwise complete the key of another claim.
    """
    owners: dict[bytes, list[Completion]] = {}
    for completion in sorted(completions, key=_hash):
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


def storable(
    dialect: SqlDialect, connection: DriverConnection, completion: Completion, count: CountEvent
) -> Completion:
    """The completion, without its result if the server would refuse a statement that contains it.

    The effect has happened, or is about to be committed: it must not fail for the sake of its result.

    Args:
        dialect: the properties of the database.
        connection: to that server.
        completion: with a result or without.
        count: counts a result that is left out.
    """
    size = len(completion.result or b"")
    if size <= PART_BYTES or dialect.statement_limit is None:
        return completion
    if connection.statement_limit is None:
        ((limit,),) = query(connection, dialect.statement_limit)
        connection.statement_limit = int(limit)
    if 2 * size + _REST_BYTES <= connection.statement_limit:
        return completion
    key = completion.claim.key
    count(key.consumer, Event.RESULT_NOT_STORED)
    why = f"{size} bytes; the server's max_allowed_packet is {connection.statement_limit}"
    log.warning("result_not_stored", extra={**about_key(key), "why": why})
    return changed(completion, result=None)


def _hash(completion: Completion) -> bytes:
    return completion.claim.key.hash
