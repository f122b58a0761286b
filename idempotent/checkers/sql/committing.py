"""Commits: ends a unit with COMMIT, and finds out what became of one that raised."""

from __future__ import annotations

import time
from collections.abc import Sequence

from idempotent.checkers.sql.ledgers import Ledger
from idempotent.checkers.sql.opening import Units
from idempotent.checkers.sql.store import SqlStore
from idempotent.checkers.sql.unit import UNDONE, Unit
from idempotent.claims import Claim, Completion
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
from idempotent.stores.sql.faults import Fault, as_store_error, original

log = EventLog(__name__)


class Commits:
    """The ends of the transactions of one checker.

    Args:
        store: the database.
        ledger: records the claims.
        units: opened the transactions.
    """

    def __init__(self, store: SqlStore, ledger: Ledger, units: Units) -> None:
        self._store = store
        self._ledger = ledger
        self._units = units

    def commit(self, completions: Sequence[Completion]) -> None:
        """Commit the unit of these claims, which must be all claims still in it.

        Raises:
            DoomedTransactionError: the database has undone the transaction.
            TransactionEscapedError: a handler ended it.
            StoreError: it is unknown whether it was committed.
        """
        unit = _unit_of([completion.claim for completion in completions])
        keyed = [completion for completion in completions if completion.claim.key is not NO_KEY]
        claims = [completion.claim for completion in keyed]
        try:
            unit.flush()
            self._demand_alive(unit, claims)
            for completion in keyed:
                self._complete(unit, completion)
            unit.commit()
        except Exception as error:
            if not unit.committing:
                self._raise_undone(unit, claims, error)
                raise  # from a statement that the flush sent, or an event of the session: the handler's failure
            if unit.committed:
                log.warning("after_commit_failed", extra={"error": _text(error)})
            else:
                self._demand_committed(unit, claims, error)
        except BaseException:
            unit.close(reuse=False)
            raise
        finally:
            unit.close()

    def _complete(self, unit: Unit, completion: Completion) -> None:
        """Record the completion. That the database cannot is no failure of the handler, whose statements have ended."""
        try:
            self._ledger.complete(unit.driver, completion, time.monotonic() - unit.began)
        except Exception as error:
            if self._units.fault(error) in UNDONE:
                raise DoomedTransactionError(
                    f"the completion of the key was not recorded: {_text(error)}"
                ) from error
            raise

    def _demand_alive(self, unit: Unit, claims: Sequence[Claim]) -> None:
        """Check that a COMMIT now would commit these keys together with all that the handlers wrote.

        Raises:
            DoomedTransactionError: the database has undone the transaction.
            TransactionEscapedError: a handler ended it.
        """
        unit.demand_open()
        if unit.doubtful and not self._is_alive(unit, claims):
            if unit.contention is not None:
                raise unit.undone()
            raise TransactionEscapedError(
                "the database undid the transaction after a statement that failed, or in a procedure, and the handler "
                "went on; let the exception pass, or use session.begin_nested() for work that may fail"
            )
        if unit.calls and self.escaped(claims):
            raise TransactionEscapedError("a procedure has committed the transaction; remove its COMMIT")
        unit.release_guard()

    def _is_alive(self, unit: Unit, claims: Sequence[Claim]) -> bool:
        """Whether the transaction in which these keys were claimed is still open: it is, if it contains them."""
        keyed = [claim for claim in claims if claim.key is not NO_KEY]
        try:
            if keyed:
                return unit.is_open and self._ledger.are_stored(unit.driver, keyed)
            return unit.is_open and unit.contention is None
        except Exception:  # the connection is lost, or refuses statements
            return False

    def _raise_undone(self, unit: Unit, claims: Sequence[Claim], error: Exception) -> None:
        """Raise DoomedTransactionError if the database, not the handler, has caused an exception."""
        if not isinstance(error, DoomedTransactionError) and self.is_undone(unit, claims, error):
            raise DoomedTransactionError(f"the server has undone the transaction: {_text(error)}") from error

    def is_undone(self, unit: Unit, claims: Sequence[Claim], error: Exception) -> bool:
        """Whether contention or a lost connection has undone the transaction. The unit's own connection decides."""
        blamed = unit.contention
        if blamed is None:
            # The unit does not see the errors of a raw cursor.
            raw = isinstance(error, self._store.engine.dialect.loaded_dbapi.Error)
            suspected = raw and self._units.fault(error) in UNDONE
        else:
            if any(original(cause) is blamed for cause in causes(error)):
                return True
            suspected = True
        return suspected and not self._is_alive(unit, claims)

    def _demand_committed(self, unit: Unit, claims: Sequence[Claim], error: Exception) -> None:
        """Return if a COMMIT that raised has succeeded; else raise an exception that says what became of it."""
        fault = self._units.fault(error)
        if fault in (Fault.ABORTED, Fault.LOCKED, Fault.FULL):
            raise DoomedTransactionError(f"the server has undone the transaction: {_text(error)}") from error
        if fault in (None, Fault.REFUSED) or self._is_alive(unit, claims):
            raise error  # a deferred constraint, or an event listener before the statement: the handler's failure
        unit.close()
        if not self._is_committed(claims):
            raise self._unknown(error, fault) from error
        log.warning("commit_answer_lost", extra={"keys": len(claims)})

    def _is_committed(self, claims: Sequence[Claim]) -> bool:
        """Whether another connection sees these claims. False proves nothing: the COMMIT may still succeed."""
        try:
            return self._store.connections.run(self._ledger.are_stored, claims)
        except StoreError:
            return False

    def _unknown(self, error: Exception, fault: Fault | None) -> StoreError:
        if fault is Fault.DISCONNECTED:
            return CommitUnknownError(f"the connection was lost during COMMIT: {_text(error)}")
        return as_store_error(error, self._store.engine, self._store.table)

    def escaped(self, claims: Sequence[Claim]) -> set[Claim]:
        """Claims committed although their unit was not: a handler ended the transaction through a raw cursor."""
        return self._store.connections.run(self._ledger.stored, claims) if claims else set()


def _unit_of(claims: Sequence[Claim]) -> Unit:
    units = {id(claim.unit): claim.unit for claim in claims}
    if len(units) != 1:
        raise ConfigurationError("claims of different transactions cannot complete together")
    unit: Unit = next(iter(units.values()))
    return unit


def _text(error: Exception) -> str:
    return " ".join(str(error).split())
