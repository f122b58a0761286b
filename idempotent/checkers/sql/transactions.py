"""HandlerTransactions: begins the transactions of handlers, claims in them, and commits them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from idempotent.checkers.sql.handler_transaction import UNDONE, Doubt, HandlerTransaction, State
from idempotent.checkers.sql.recorders import ClaimRecorder
from idempotent.checkers.sql.sessions import Sessions
from idempotent.checkers.sql.store import SqlStore
from idempotent.claims import Claim, ClaimRequest, Completion, Decision
from idempotent.errors import (
    CommitUnknownError,
    ConfigurationError,
    DoomedTransactionError,
    StoreError,
    TransactionEscapedError,
)
from idempotent.keys import NO_KEY
from idempotent.logs import EventLog
from idempotent.policy import causes
from idempotent.stores.sql.detached import DetachedConnections
from idempotent.stores.sql.faults import KEPT, Fault, as_store_error, fault_of, original

log = EventLog(__name__)

_CLAIM_TRIES: Final = 3


class HandlerTransactions:
    """The handlers' transactions of one checker.

    Args:
        store: the database.
        recorder: records the claims.
        sessions: makes the handlers' Session on the connection.
        strict: see `HandlerTransaction`.
    """

    _kind: type[DetachedConnections] = DetachedConnections

    def __init__(self, store: SqlStore, recorder: ClaimRecorder, sessions: Sessions, *, strict: bool) -> None:
        self._store = store
        self._recorder = recorder
        self.sessions: Final = sessions
        self._strict = strict
        self._connections = self._kind(store.engine, autocommit=False)

    def open(self, requests: Sequence[ClaimRequest], wait_s: float) -> list[Decision]:
        """Begin a transaction and claim in it; it stays open if a key was acquired.

        Args:
            requests: at most one for each key.
            wait_s: the longest wait for another transaction, in seconds.

        Raises:
            StoreError: the database did not answer.
        """
        for remaining in reversed(range(_CLAIM_TRIES)):
            transaction: HandlerTransaction | None = None
            try:
                transaction = self._begin()
                decisions = self._recorder.claim(transaction.driver, requests, wait_s)
                if not any(decision.claim for decision in decisions):
                    transaction.commit()  # a lapsed key may have been parked
                    transaction.close()
                    return decisions
                transaction.guard()
            except BaseException as error:
                fault = self.fault(error)
                raw = None if transaction is None else transaction.driver.raw
                failed = fault and as_store_error(error, self._store.engine, self._store.table, raw)
                if transaction is not None:
                    transaction.close(reuse=fault in KEPT)
                if failed is None:
                    raise
                if fault not in KEPT:
                    self._connections.close()
                if remaining and fault in (Fault.ABORTED, Fault.DISCONNECTED):
                    continue
                raise failed from error
            return [_in_transaction(decision, transaction) for decision in decisions]
        raise AssertionError("unreachable")

    def open_empty(self) -> Claim:
        """Begin a transaction without a key.

        Raises:
            StoreError: the database did not answer.
        """
        transaction: HandlerTransaction | None = None
        try:
            transaction = self._begin()
            transaction.guard(keyed=False)
        except BaseException as error:
            fault = self.fault(error)
            if transaction is not None:
                transaction.close(reuse=fault in KEPT)
            if fault is None:
                raise
            raise as_store_error(error, self._store.engine, self._store.table) from error
        return Claim(NO_KEY, transaction=transaction)

    def forget(self, claim: Claim) -> None:
        """Remove one claim from its transaction, which continues without it."""
        self._recorder.forget(claim.transaction.driver, claim)

    def close(self) -> None:
        """Close idle connections; a connection in use is closed when its transaction ends."""
        self._connections.close()

    def commit(self, completions: Sequence[Completion]) -> None:
        """Commit the transaction of these claims, which must be all claims still in it.

        Raises:
            DoomedTransactionError: the database has undone the transaction.
            TransactionEscapedError: a handler ended it.
            StoreError: it is unknown whether it was committed.
        """
        transaction = _transaction_of([completion.claim for completion in completions])
        keyed = [completion for completion in completions if completion.claim.key is not NO_KEY]
        claims = [completion.claim for completion in keyed]
        try:
            transaction.flush()
            self._demand_alive(transaction, claims)
            for completion in keyed:
                self._complete(transaction, completion)
            transaction.commit()
        except Exception as error:
            if transaction.state in (State.HANDLING, State.ENDING):
                self._raise_undone(transaction, claims, error)
                raise  # from a statement that the flush sent, or an event of the session: the handler's failure
            if transaction.state is State.COMMITTED:
                log.warning("after_commit_failed", extra={"error": _text(error)})
            else:
                self._demand_committed(transaction, claims, error)
        except BaseException:
            transaction.close(reuse=False)
            raise
        finally:
            transaction.close()

    def _complete(self, transaction: HandlerTransaction, completion: Completion) -> None:
        """Record the completion. That the database cannot is no failure of the handler, whose statements have ended."""
        try:
            self._recorder.complete(transaction.driver, completion, time.monotonic() - transaction.began)
        except Exception as error:
            if self.fault(error) in UNDONE:
                raise DoomedTransactionError(
                    f"the completion of the key was not recorded: {_text(error)}"
                ) from error
            raise

    def _demand_alive(self, transaction: HandlerTransaction, claims: Sequence[Claim]) -> None:
        """Check that a COMMIT now would commit these keys together with all that the handlers wrote.

        Raises:
            DoomedTransactionError: the database has undone the transaction.
            TransactionEscapedError: a handler ended it.
        """
        transaction.demand_open()
        if transaction.doubt and not self._is_alive(transaction, claims):
            if transaction.contention is not None:
                raise transaction.undone()
            raise TransactionEscapedError(
                "the database undid the transaction after a statement that failed, or in a procedure, and the handler "
                "went on; let the exception pass, or use session.begin_nested() for work that may fail"
            )
        if transaction.doubt is Doubt.HIDDEN:
            self.demand_none_escaped(claims)
        transaction.release_guard()

    def _is_alive(self, transaction: HandlerTransaction, claims: Sequence[Claim]) -> bool:
        """Whether the transaction in which these keys were claimed is still open: it is, if it contains them."""
        keyed = [claim for claim in claims if claim.key is not NO_KEY]
        try:
            if keyed:
                return transaction.is_open and self._recorder.are_stored(transaction.driver, keyed)
            return transaction.is_open and transaction.contention is None
        except Exception:  # the connection is lost, or refuses statements
            return False

    def _raise_undone(
        self, transaction: HandlerTransaction, claims: Sequence[Claim], error: Exception
    ) -> None:
        """Raise DoomedTransactionError if the database, not the handler, has caused an exception."""
        if not isinstance(error, DoomedTransactionError) and self.is_undone(transaction, claims, error):
            raise DoomedTransactionError(f"the server has undone the transaction: {_text(error)}") from error

    def is_undone(self, transaction: HandlerTransaction, claims: Sequence[Claim], error: Exception) -> bool:
        """Whether contention or a lost connection has undone the transaction. Its own connection decides."""
        blamed = transaction.contention
        if blamed is None:
            # The transaction does not see the errors of a raw cursor.
            raw = isinstance(error, self._store.engine.dialect.loaded_dbapi.Error)
            suspected = raw and self.fault(error) in UNDONE
        else:
            if any(original(cause) is blamed for cause in causes(error)):
                return True
            suspected = True
        return suspected and not self._is_alive(transaction, claims)

    def _demand_committed(
        self, transaction: HandlerTransaction, claims: Sequence[Claim], error: Exception
    ) -> None:
        """Return if a COMMIT that raised has succeeded; else raise an exception that says what became of it."""
        fault = self.fault(error)
        if fault in (Fault.ABORTED, Fault.LOCKED, Fault.FULL):
            raise DoomedTransactionError(f"the server has undone the transaction: {_text(error)}") from error
        if fault in (None, Fault.REFUSED) or self._is_alive(transaction, claims):
            raise error  # a deferred constraint, or an event listener before the statement: the handler's failure
        transaction.close()
        if not self._is_committed(claims):
            raise self._unknown(error, fault) from error
        log.warning("commit_answer_lost", extra={"keys": len(claims)})

    def _is_committed(self, claims: Sequence[Claim]) -> bool:
        """Whether another connection sees these claims. False proves nothing: the COMMIT may still succeed."""
        try:
            return self._store.connections.run(self._recorder.are_stored, claims)
        except StoreError:
            return False

    def _unknown(self, error: Exception, fault: Fault | None) -> StoreError:
        if fault is Fault.DISCONNECTED:
            return CommitUnknownError(f"the connection was lost during COMMIT: {_text(error)}")
        return as_store_error(error, self._store.engine, self._store.table)

    def escaped(self, claims: Sequence[Claim]) -> set[Claim]:
        """Claims committed although their transaction was not: a handler ended the transaction through a raw cursor."""
        return self._store.connections.run(self._recorder.stored, claims) if claims else set()

    def demand_none_escaped(self, claims: Sequence[Claim]) -> None:
        """Raise a TransactionEscapedError if a handler has committed these claims by itself."""
        if self.escaped(claims):
            raise TransactionEscapedError(
                "a procedure, or a cursor of the driver, has committed the transaction; remove that COMMIT"
            )

    def fault(self, error: BaseException) -> Fault | None:
        """The kind of a database error; None: the error does not come from the database."""
        engine = self._store.engine
        if isinstance(error, (DBAPIError, PoolTimeoutError, engine.dialect.loaded_dbapi.Error, OSError)):
            return fault_of(error, engine)
        return None

    def _begin(self) -> HandlerTransaction:
        dialect = self._store.connections.dialect
        return HandlerTransaction(self._connections, dialect, self.sessions, strict=self._strict)


def _in_transaction(decision: Decision, transaction: HandlerTransaction) -> Decision:
    claim = decision.claim
    if claim is None:
        return decision
    # A leased checker on the same table may have left a lapsed claim. Its attempt is not counted, so `lapse_counts` is
    # not copied: that would need a second transaction, and this one has locked the key.
    return Decision(
        decision.verdict,
        Claim(
            claim.key,
            claim.fence,
            claim.owner,
            transaction,
            claim.partition,
            claim.attempt,
            claim.max_attempts,
        ),
        lapsed=decision.lapsed,
    )


def _transaction_of(claims: Sequence[Claim]) -> HandlerTransaction:
    transactions = {id(claim.transaction): claim.transaction for claim in claims}
    if len(transactions) != 1:
        raise ConfigurationError("claims of different transactions cannot complete together")
    transaction: HandlerTransaction = next(iter(transactions.values()))
    return transaction


def _text(error: Exception) -> str:
    return " ".join(str(error).split())
