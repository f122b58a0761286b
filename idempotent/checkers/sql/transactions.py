"""HandlerTransactions: begins the transactions of handlers, claims in them by a ClaimRecorder, and commits them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from idempotent.checkers.sql.handler_transaction import (
    UNDONE,
    Doubt,
    HandlerTransaction,
    State,
    undone,
)
from idempotent.checkers.sql.recorders import ClaimRecorder
from idempotent.checkers.sql.sessions import Sessions
from idempotent.checkers.sql.store import SqlStore
from idempotent.checkers.sql.watching import was_sending
from idempotent.checkers.transactions import transaction_of
from idempotent.claims import Claim, ClaimRequest, Completion, Decision, Verdict
from idempotent.errors import (
    CommitUnknownError,
    DoomedTransactionError,
    StoreError,
    TransactionEscapedError,
    described,
)
from idempotent.keys import NO_KEY
from idempotent.logs import EventLog
from idempotent.policy import causes
from idempotent.stores.sql.detached import DetachedConnections
from idempotent.stores.sql.faults import KEPT, Fault, as_store_error, explained, fault_of, original
from idempotent.stores.sql.loops import LoopConnections

log = EventLog(__name__)

_CLAIM_TRIES: Final = 3
_WITHOUT_KEY: Final = Decision(Verdict.ACQUIRED, Claim(NO_KEY))
# Or a new transaction; a handler may have left its role on the connection, which lacks rights.
_NEW_CONNECTION_HELPS: Final = (Fault.ABORTED, Fault.DISCONNECTED, Fault.DENIED)


class HandlerTransactions:
    """The handlers' transactions of one checker.

    Args:
        store: the database.
        recorder: records the claims.
        sessions: makes the handlers' Session on the connection.
        strict: see `HandlerTransaction`.
    """

    def __init__(self, store: SqlStore, recorder: ClaimRecorder, sessions: Sessions, *, strict: bool) -> None:
        self._store = store
        self._recorder = recorder
        self.sessions: Final = sessions
        self._strict = strict
        self._kind: Callable[..., HandlerTransaction] = HandlerTransaction
        connections = LoopConnections if store.is_async else DetachedConnections
        self._connections = connections(store.engine, autocommit=False)
        if store.is_async:
            # Imported here: SQLAlchemy's asyncio part takes a while, and most checkers do without.
            from idempotent.checkers.sql.asynchronous.handler_transaction import AsyncHandlerTransaction

            self._kind = partial(AsyncHandlerTransaction, store.bridge)

    def open(self, requests: Sequence[ClaimRequest], wait_s: float) -> list[Decision]:
        """Begin a transaction and claim in it; it stays open if a key was acquired.

        Args:
            requests: at most one for each key; none: of a handler that runs without a key, which has a claim as well.
            wait_s: the longest wait for another transaction, in seconds.

        Raises:
            StoreError: the database did not answer.
        """
        for remaining in reversed(range(_CLAIM_TRIES)):
            try:
                return self._begin(requests, wait_s)
            except StoreError as failed:
                cause = failed.__cause__
                if not remaining or cause is None or self.fault(cause) not in _NEW_CONNECTION_HELPS:
                    raise
        raise AssertionError("unreachable")

    def _begin(self, requests: Sequence[ClaimRequest], wait_s: float) -> list[Decision]:
        """One try of `open`."""
        transaction: HandlerTransaction | None = None
        try:
            dialect = self._store.connections.dialect
            transaction = self._kind(self._connections, dialect, self.sessions, strict=self._strict)
            decisions = [_WITHOUT_KEY]
            if requests:
                decisions = self._recorder.claim(transaction.driver, requests, wait_s)
            if not any(decision.claim for decision in decisions):
                transaction.commit()  # a lapsed key may have been parked
                transaction.close()
                return decisions
            transaction.guard(keyed=bool(requests))
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
            raise failed from error
        return [_in_transaction(decision, transaction) for decision in decisions]

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
        transaction: HandlerTransaction = transaction_of([completion.claim for completion in completions])
        keyed = [completion for completion in completions if completion.claim.key is not NO_KEY]
        claims = [completion.claim for completion in keyed]
        try:
            transaction.flush()
            self._demand_alive(transaction, claims)
            transaction.release_guard()
            for completion in keyed:
                self._complete(transaction, completion)
            transaction.check = lambda: self._demand_kept(transaction, claims)
            transaction.commit()
        except Exception as error:
            if transaction.state in (State.HANDLING, State.ENDING):
                if isinstance(error, TransactionEscapedError):  # the next message may not find it as it was
                    transaction.close(reuse=False)
                if not isinstance(error, DoomedTransactionError) and self.is_undone(
                    transaction, claims, error
                ):
                    raise undone(error) from error
                if self.fault(error) is None:  # perhaps that of a signal handler within the driver
                    transaction.close(reuse=False)
                raise  # from a statement that the flush sent, or an event of the session: the handler's failure
            if transaction.state is State.COMMITTED:
                log.warning("after_commit_failed", extra={"error": explained(error)})
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
                    f"the completion of the key was not recorded: {explained(error)}"
                ) from error
            if self.fault(error) is Fault.DENIED:
                raise as_store_error(error, self._store.engine, self._store.table, in_handler=True) from error
            raise

    def _demand_alive(self, transaction: HandlerTransaction, claims: Sequence[Claim]) -> None:
        """Check that a COMMIT now would commit these keys together with all that the handlers wrote.

        Raises:
            DoomedTransactionError: the database has undone the transaction.
            TransactionEscapedError: a handler ended it.
        """
        transaction.demand_open()
        if transaction.doubt and not self._is_alive(transaction, claims):
            if transaction.undone_by is not None:
                raise undone(transaction.undone_by)
            raise TransactionEscapedError(
                "the database undid the transaction after a statement that failed, or in a procedure, and the handler "
                "went on; let the exception pass, or use session.begin_nested() for work that may fail"
            )
        if transaction.doubt is Doubt.HIDDEN:
            self.demand_none_stored(claims)

    def _demand_kept(self, transaction: HandlerTransaction, claims: Sequence[Claim]) -> None:
        """Check, after a listener has sent statements, that COMMIT would keep these keys, or has kept them.

        Raises:
            DoomedTransactionError, TransactionEscapedError, StoreError: as `_demand_alive` and `stored`.
        """
        if transaction.state is not State.COMMIT_SENT:
            self._demand_alive(transaction, claims)
        elif not self.stored(claims):
            raise TransactionEscapedError(
                "a listener to the engine's commit has rolled the transaction back, or ignored an error that did"
            )

    def _is_alive(self, transaction: HandlerTransaction, claims: Sequence[Claim]) -> bool:
        """Whether the transaction in which these keys were claimed is still open: it is, if it contains them."""
        keyed = [claim for claim in claims if claim.key is not NO_KEY]
        try:
            if keyed:
                return transaction.is_open and self._recorder.are_stored(transaction.driver, keyed)
            return transaction.is_open and transaction.undone_by is None
        except Exception:  # the connection is lost, or refuses statements
            return False

    def is_undone(self, transaction: HandlerTransaction, claims: Sequence[Claim], error: Exception) -> bool:
        """Whether the server has undone the transaction, and this error says so. Its own connection decides."""
        if transaction.undone_by is None:
            # The transaction does not see the errors of a raw cursor.
            raw = isinstance(error, self._store.engine.dialect.loaded_dbapi.Error)
            if not raw or self.fault(error) not in UNDONE:
                return False
        elif any(original(cause) is transaction.undone_by for cause in causes(error)):
            return True
        return not self._is_alive(transaction, claims)

    def _demand_committed(
        self, transaction: HandlerTransaction, claims: Sequence[Claim], error: Exception
    ) -> None:
        """Return if a COMMIT that raised has succeeded; else raise an exception that says what became of it.

        One that is not the database's own proves nothing: the handler of a signal may raise anywhere.
        """
        fault = self.fault(error)
        if fault in (Fault.ABORTED, Fault.LOCKED, Fault.FULL):
            raise undone(error) from error
        refused = fault is Fault.REFUSED or isinstance(error, TransactionEscapedError)
        # After an exception within the driver its connection may hold an unread answer, and is not to be asked.
        asked = fault is not None or not was_sending(error)
        if refused or (asked and self._is_alive(transaction, claims)):
            transaction.state = State.ROLLED_BACK  # as `close` will do
            raise error  # a deferred constraint, or an event listener before the statement: the handler's failure
        transaction.close(reuse=False)
        if not self._is_committed(claims):
            raise self._unknown(error, fault) from error
        log.warning("commit_answer_lost", extra={"keys": len(claims)})

    def _is_committed(self, claims: Sequence[Claim]) -> bool:
        """Whether another connection sees these claims. False proves nothing: the COMMIT may still succeed."""
        try:
            return self._store.connections.run(self._recorder.are_stored, claims)
        except StoreError:
            return False

    def committed(self, claims: Sequence[Claim]) -> bool:
        """Whether COMMIT has succeeded, of a transaction that an exception has left at any point.

        Raises:
            CommitUnknownError: it was sent, and no connection sees the claims.
        """
        state: State = transaction_of(claims).state
        if state is State.COMMIT_SENT and not self._is_committed(claims):
            raise CommitUnknownError("an exception came during COMMIT")
        return state in (State.COMMIT_SENT, State.COMMITTED)

    def _unknown(self, error: Exception, fault: Fault | None) -> StoreError:
        if fault is Fault.DISCONNECTED:
            return CommitUnknownError(f"the connection was lost during COMMIT: {explained(error)}")
        if fault is None and not isinstance(error, StoreError):
            return CommitUnknownError(f"an exception came during COMMIT: {described(error)}")
        return as_store_error(error, self._store.engine, self._store.table)

    def stored(self, claims: Sequence[Claim]) -> set[Claim]:
        """The claims that another connection sees: committed by the checker, or, before it has, by a handler."""
        return self._store.connections.run(self._recorder.stored, claims) if claims else set()

    def demand_none_stored(self, claims: Sequence[Claim]) -> None:
        """Raise a TransactionEscapedError if a handler has committed these claims by itself."""
        if self.stored(claims):
            raise TransactionEscapedError(
                "a procedure, or a cursor of the driver, has committed the transaction; remove that COMMIT"
            )

    def fault(self, error: BaseException) -> Fault | None:
        """The kind of a database error; None: the error does not come from the database."""
        engine = self._store.engine
        if isinstance(error, (DBAPIError, PoolTimeoutError, engine.dialect.loaded_dbapi.Error, OSError)):
            return fault_of(error, engine)
        return None


def _in_transaction(decision: Decision, transaction: HandlerTransaction) -> Decision:
    claim = decision.claim
    if claim is None:
        return decision
    # `changed` would take longer than all else of a claim.
    known = claim.partition, claim.attempt, claim.max_attempts, claim.deaths
    held = Claim(claim.key, claim.fence, claim.owner, transaction, *known)
    return Decision(decision.verdict, held, deaths=decision.deaths)
