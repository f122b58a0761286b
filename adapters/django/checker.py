"""DjangoChecker: the key commits in the `atomic()` of the effect, on Django's own connection, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from django.db import DEFAULT_DB_ALIAS, Error

from idempotent.adapters.django.block import Block
from idempotent.adapters.django.database import Database
from idempotent.admin import KeyAdmin
from idempotent.checkers.awaiting import Awaiting
from idempotent.checkers.base import DEFAULT_RETENTION_S, AbstractIdempotentChecker
from idempotent.checkers.durations import Durations
from idempotent.checkers.sql.failures import FailedAttempt
from idempotent.checkers.sql.keytable import ClaimMode
from idempotent.checkers.sql.recorders import KeyRecorder
from idempotent.checkers.sql.store import SqlKeyAdmin
from idempotent.checkers.transactions import TransactionHooks, record_again, transaction_of
from idempotent.claims import (
    UNBOUNDED,
    Claim,
    ClaimRequest,
    Completion,
    Decision,
    Failure,
    Guarantee,
    Released,
    Verdict,
)
from idempotent.errors import (
    CommitUnknownError,
    ConfigurationError,
    DoomedTransactionError,
    StoreBusyError,
    StoreError,
    TransactionEscapedError,
)
from idempotent.forks import generation
from idempotent.keys import NO_KEY
from idempotent.logs import EventLog
from idempotent.schema import DEFAULT_TABLE, failures_name
from idempotent.stores.sql.cursor import query
from idempotent.stores.sql.faults import Fault, explained
from idempotent.validation import seconds
from idempotent.values import changed

if TYPE_CHECKING:
    from idempotent.checkers.sql.store import SqlStore

log = EventLog(__name__)

OTHER_WRITER: Final = (
    "another transaction writes to the file of SQLite, and this one cannot claim a key meanwhile"
)
_TRIES: Final = 3
_RETRY_S: Final = 1.0
_LONGEST_LOCK_S: Final = 7 * 86400.0
# A new transaction helps: the server has undone this one, or the connection was idle for too long.
_UNDONE: Final = (Fault.ABORTED, Fault.DISCONNECTED)
_NOT_COMMITTED: Final = (Fault.ABORTED, Fault.LOCKED, Fault.FULL)


class DjangoChecker(AbstractIdempotentChecker, TransactionHooks):
    """Keys in one of Django's databases, which commit with what the handler writes there by models or cursors.

    In an open `atomic()`, such as that of `ATOMIC_REQUESTS`, key and effect are a savepoint of it: they commit with it,
    or go with it. Otherwise the checker opens an `atomic()` of its own, and has committed it when the handler's result
    is returned. `transaction.on_commit()` works in both. A handler is a plain function, without a session.

    Args:
        using: the alias of the database, which has the tables of `python manage.py migrate`.
        retention_s: seconds a key is remembered, counted from its claim.
        lock_timeout_s: seconds a claim waits for another transaction that has its key, before it answers IN_PROGRESS.
            MariaDB rounds them up to whole ones. On MySQL and SQLite the limit of the connection applies instead
            (`innodb_lock_wait_timeout`, `timeout`).

    Raises:
        ConfigurationError: an invalid duration.
    """

    group_is_atomic = True
    lends = False
    no_async = (
        "is for plain functions: write a `def`, and call it with sync_to_async, as any transaction of Django"
    )

    def __init__(
        self,
        using: str = DEFAULT_DB_ALIAS,
        *,
        retention_s: float = DEFAULT_RETENTION_S,
        lock_timeout_s: float = 0.0,
    ) -> None:
        super().__init__(lease_s=None, retention_s=retention_s)
        self.using: Final = using
        self.lock_timeout_s: Final = seconds(
            lock_timeout_s, "lock_timeout_s", zero=True, most_s=_LONGEST_LOCK_S
        )
        self._database: Final = Database(using)
        self._recorder: Final = KeyRecorder(self._store, Durations.of(self), self.protocol.events.count)
        # What handlers of this process run now, by the hash of the key. To change an entry of a dict is atomic.
        self._running: dict[bytes, tuple[Block, ClaimRequest]] = {}
        self._generation = generation.number

    @property
    def _store(self) -> SqlStore:
        """The database, as those see it who need no more of a store than it has."""
        return cast("SqlStore", self._database)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.TRANSACTIONAL

    @property
    def awaiting(self) -> Awaiting:
        """Nothing: it has no async handlers.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(f"a DjangoChecker {self.no_async}")

    def admin(self) -> KeyAdmin:
        return SqlKeyAdmin(self._store, self.retention_s)

    def ping(self) -> None:
        for table in (DEFAULT_TABLE, failures_name(DEFAULT_TABLE)):
            name = self._database.dialect.located(table)
            self._database.run(query, f"SELECT key_hash FROM {name} WHERE 1 = 0")

    def _claim(self, request: ClaimRequest) -> Decision:
        try:
            return self._claim_many([request])[0]
        except StoreBusyError:
            reason = OTHER_WRITER if self._database.connection.vendor == "sqlite" else None
            return Decision(Verdict.IN_PROGRESS, retry_after_s=_RETRY_S, reason=reason)

    def _claim_many(self, requests: Sequence[ClaimRequest]) -> list[Decision]:
        if self._generation != generation.number:  # what runs is the parent's
            self._running, self._generation = {}, generation.number
        requests = list(requests)
        decisions = {
            request.key.hash: _runs_here(found) for request in requests if (found := self._runner(request))
        }
        free = [request for request in requests if request.key.hash not in decisions]
        if free:
            decisions |= zip((request.key.hash for request in free), self._open(free), strict=True)
        return [decisions[request.key.hash] for request in requests]

    def _runner(self, request: ClaimRequest) -> ClaimRequest | None:
        """The request with this key that runs in this process, if any."""
        found = self._running.get(request.key.hash)
        return None if found is None or found[0].has_ended else found[1]

    def _open(self, requests: Sequence[ClaimRequest]) -> list[Decision]:
        """Claim in a new block, which stays open if a key was acquired."""
        for remaining in reversed(range(_TRIES)):
            block: Block | None = None
            try:
                block = Block(self._database)
                return self._claimed_in(block, requests)
            except BaseException as error:
                if block is not None:
                    block.close()
                fault = self._database.fault(error) if isinstance(error, Exception) else None
                joins = self._database.connection.in_atomic_block
                if fault is Fault.DISCONNECTED and not joins:
                    self._database.connection.close()
                if fault not in _UNDONE or joins or not remaining:
                    raise
        raise AssertionError("unreachable")

    def _claimed_in(self, block: Block, requests: Sequence[ClaimRequest]) -> list[Decision]:
        """Claim in a block."""
        with self._database.translated():
            # Not DONE before it is: what a handler commits by itself must not look as if it had ended.
            mode = ClaimMode(locking=True, wait_s=self.lock_timeout_s)
            with block.connection.wrap_database_errors:
                found = self._recorder.keys.claim(block.driver, requests, mode)
            if not any(decision.claim for decision in found):
                block.commit()
                block.end()
                return found
        ours = {
            request.key.hash: request for request, each in zip(requests, found, strict=True) if each.claim
        }
        self._running.update({hashed: (block, request) for hashed, request in ours.items()})
        block.on_end = partial(self._forget, block, list(ours))
        return [_in_block(decision, block) for decision in found]

    def _forget(self, block: Block, hashes: Sequence[bytes]) -> None:
        for hashed in hashes:
            found = self._running.get(hashed)
            if found is not None and found[0] is block:
                self._running.pop(hashed, None)

    def _complete(self, completion: Completion) -> bool:
        return self._complete_many([completion])[0]

    def _complete_many(self, completions: Sequence[Completion]) -> list[bool]:
        """Commit the block of these claims, which must be all claims still in it."""
        block: Block = transaction_of([completion.claim for completion in completions])
        keyed = [completion for completion in completions if completion.claim.key is not NO_KEY]
        try:
            self._record(block, keyed)
            self._commit(block, [completion.claim for completion in keyed])
        finally:
            block.close()
        return [True] * len(completions)

    def _record(self, block: Block, completions: Sequence[Completion]) -> None:
        """Record in the block that its keys are done.

        Raises:
            DoomedTransactionError: the database has undone its transaction.
            TransactionEscapedError: the handler ended it, or left it unfit to commit.
        """
        block.demand_whole()
        try:
            for completion in completions:
                with block.connection.wrap_database_errors:
                    is_there = self._recorder.keys.complete(block.driver, completion)
                if not is_there:
                    raise TransactionEscapedError(
                        f"{completion.claim.key} is not in the transaction any more: the handler has ended it"
                    )
        except Error as error:
            if not block.joins and self._database.fault(error) in _UNDONE:
                raise DoomedTransactionError(
                    f"the completion was not recorded: {explained(error)}"
                ) from error
            raise

    def _commit(self, block: Block, claims: Sequence[Claim]) -> None:
        """Commit, and if that raises, find out what has become of it.

        Raises:
            DoomedTransactionError: the database has undone the transaction.
            CommitUnknownError: the database does not say; the next claim of the key finds out.
        """
        try:
            block.commit()
        except BaseException as error:
            if block.joins:
                raise
            if not isinstance(error, Exception):
                block.drop_connection()
                raise
            if block.is_committed:
                log.warning("after_commit_failed", extra={"error": explained(error)})
                return
            fault = self._database.fault(error)
            if fault in _NOT_COMMITTED:
                raise DoomedTransactionError(
                    f"the server has undone the transaction: {explained(error)}"
                ) from error
            if fault is Fault.REFUSED:
                raise  # a deferred constraint: the handler's failure
            block.drop_connection()  # it may hold an unread answer
            if not self._is_stored(claims):
                raise CommitUnknownError(f"COMMIT got no answer: {explained(error)}") from error
            block.is_committed = True
            log.warning("commit_answer_lost", extra={"keys": len(claims)})

    def _stored(self, claims: Sequence[Claim]) -> set[Claim]:
        """Those of these claims that are committed, with their owners.

        Raises:
            StoreError: the database did not answer.
        """
        return self._database.run(self._recorder.stored, claims)

    def _is_stored(self, claims: Sequence[Claim]) -> bool:
        """Whether another connection sees these claims. False proves nothing: the COMMIT may still succeed."""
        try:
            return bool(claims) and len(self._stored(claims)) == len(claims)
        except StoreError:
            return False

    def committed(self, completions: Sequence[Completion]) -> bool:
        block: Block = completions[0].claim.transaction
        return block.is_committed

    def _release(self, claim: Claim, failure: Failure | None) -> Released:
        return self._release_many([(claim, failure)])[0]

    def _release_many(self, releases: Sequence[tuple[Claim, Failure | None]]) -> list[Released]:
        """Roll back; then record each failure, in the outer `atomic()` if there is one."""
        blocks: list[Block] = [claim.transaction for claim, _ in releases]
        try:
            # A copy of a message in this process must not run between the rollback and its backoff.
            for block in blocks:
                block.roll_back()
            return [self._recorded(claim, failure) for claim, failure in releases]
        finally:
            for block in blocks:
                block.close()

    def _recorded(self, claim: Claim, failure: Failure | None) -> Released:
        block: Block = claim.transaction
        if claim.key is NO_KEY or block.is_committed:
            return Released(owned=True)
        if block.joins:
            counts = failure is not None and (
                failure.fatal or failure.max_attempts != UNBOUNDED or failure.backoff is not None
            )
            if failure is None or not counts or self._database.connection.needs_rollback:
                return Released(owned=True)  # nothing depends on it, or the outer atomic() would take it back
            return self._recorder.count_failure(FailedAttempt(claim, failure))
        try:
            escaped = self._stored([claim])
        except StoreError:
            if failure is not None:
                raise
            return Released(owned=True)  # nothing is left to do: the database rolls back what it has lost
        if escaped:
            return self._database.run_atomically(self._recorder.mark_committed_dead, claim)
        return (
            Released(owned=True)
            if failure is None
            else self._recorder.count_failure(FailedAttempt(claim, failure))
        )

    def ignore(self, request: ClaimRequest, claim: Claim) -> None:
        """Roll back the handler's writes, and record the key."""
        claim.transaction.close()
        if not claim.transaction.joins and self._stored([claim]):
            raise TransactionEscapedError("the handler has committed its transaction, and then raised")
        record_again(self.protocol, request, claim)

    def claim_nothing(self) -> Claim:
        return Claim(NO_KEY, transaction=Block(self._database))

    def forget(self, claim: Claim) -> None:
        block: Block = claim.transaction
        block.demand_whole()
        with self._database.translated():
            self._recorder.forget(block.driver, claim)

    def interrupted(self, claim: Claim) -> None:
        claim.transaction.interrupt()

    def is_transient(self, claim: Claim, error: Exception) -> bool:
        """Whether the database undid the checker's own transaction; one that it has joined is not its to repeat."""
        if claim.transaction.joins:
            return False
        return isinstance(error, DoomedTransactionError) or self._database.fault(error) in _UNDONE

    def has_lost_connection(self, error: Exception) -> bool:
        return self._database.fault(error) is Fault.DISCONNECTED

    def check_argument(self, kind: type) -> NoReturn:
        raise ConfigurationError(
            f"a DjangoChecker gives no {kind.__name__}: Django's models and cursors write in the transaction of the key"
        )

    def handler_argument(self, claim: Claim, kind: type) -> Any:
        del claim
        self.check_argument(kind)

    def _garbage_collect(self, limit: int) -> int:
        return self._database.run(self._recorder.delete_expired, limit)


def _runs_here(request: ClaimRequest) -> Decision:
    return Decision(
        Verdict.IN_PROGRESS,
        retry_after_s=_RETRY_S,
        fingerprint=request.fingerprint,
        reason="this process runs it",
    )


def _in_block(decision: Decision, block: Block) -> Decision:
    claim = decision.claim
    return decision if claim is None else changed(decision, claim=changed(claim, transaction=block))
