"""InTransactions: records claims in the transaction of the handlers' writes, through a ledger."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from idempotent.admin import Finding
from idempotent.checkers.base import DEFAULT_RETENTION_S, AbstractIdempotentChecker
from idempotent.checkers.sql.checker import SqlChecker
from idempotent.checkers.sql.health import sql_findings
from idempotent.checkers.sql.ledgers import Ledger
from idempotent.checkers.sql.opening import Database, Units, session_factory
from idempotent.checkers.sql.store import SqlStore
from idempotent.checkers.sql.unit import UNDONE, Unit
from idempotent.checkers.transactions import TransactionHooks
from idempotent.claims import Claim, ClaimRequest, Completion, Decision, Failure, Guarantee, Released, Verdict
from idempotent.errors import (
    CommitUnknownError,
    ConfigurationError,
    DoomedTransactionError,
    StoreBusyError,
    StoreError,
)
from idempotent.schema import DEFAULT_TABLE
from idempotent.stores.sql.faults import Fault, as_store_error
from idempotent.values import changed

log = logging.getLogger(__name__)

_GC_LEASE_S: Final = 60.0


class InTransactions(AbstractIdempotentChecker, TransactionHooks):
    """A checker whose claims commit together with the handlers' writes, or not at all.

    A subclass chooses what is recorded, by `ledger_type`, and documents the arguments.
    """

    group_is_atomic = True
    ledger_type: type[Ledger]

    def __init__(
        self,
        engine_or_url: Database,
        *,
        table: str = DEFAULT_TABLE,
        retention_s: float = DEFAULT_RETENTION_S,
        lock_timeout_s: float = 5.0,
        savepoints: bool = False,
        strict: bool = False,
    ) -> None:
        super().__init__(lease_s=None, retention_s=retention_s)
        if not lock_timeout_s > 0:
            raise ConfigurationError(f"lock_timeout_s must be positive seconds, not {lock_timeout_s!r}")
        if savepoints and not self.ledger_type.can_forget:
            raise ConfigurationError(f"savepoints=True cannot go with {type(self).__name__}; remove it")
        factory, engine = session_factory(engine_or_url)
        self.store: Final = SqlStore(engine, table)
        self.lock_timeout_s: Final = lock_timeout_s
        self.isolates = savepoints
        self.strict: Final = strict
        self._ledger = self.ledger_type(self.store, self.retention_s)
        self._units: Final = Units(self.store, self._ledger, factory, strict=strict)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.TRANSACTIONAL

    def findings(self) -> Sequence[Finding]:
        return sql_findings(self.store)

    def _claim(self, request: ClaimRequest) -> Decision:
        try:
            return self._units.open([request], self.lock_timeout_s)[0]
        except StoreBusyError:
            # Another transaction held the key (on SQLite: any row of the file) for the whole wait, or the server
            # reported several deadlocks in a row.
            return Decision(Verdict.IN_PROGRESS, retry_after_s=min(self.lock_timeout_s, 1.0))

    def _claim_many(self, requests: Sequence[ClaimRequest]) -> list[Decision]:
        # Without waiting: one busy key must not delay the others. The caller then claims them one by one.
        return self._units.open(requests, 0.0)

    def _complete(self, completion: Completion) -> bool:
        return self._complete_many([completion])[0]

    def _complete_many(self, completions: Sequence[Completion]) -> list[bool]:
        """Commit the unit of these claims, which must be all claims still in it."""
        unit = _unit_of([completion.claim for completion in completions])
        keyed = [completion for completion in completions if completion.claim.key]
        try:
            unit.flush()
            unit.demand_alive()
            for completion in keyed:
                self._ledger.store_result(unit.driver, completion)
        except BaseException as error:
            unit.close(reuse=isinstance(error, Exception))
            if self._units.fault(error) in UNDONE:
                raise DoomedTransactionError(f"the server has undone the transaction: {error}") from error
            raise  # a statement of the handler that the flush sent: the handler's failure
        try:
            unit.commit()
        except Exception as error:
            unit.close()
            fault = self._units.fault(error)
            if fault is Fault.REFUSED:
                raise  # a deferred constraint: the handler's failure
            if fault in (Fault.ABORTED, Fault.LOCKED):
                raise DoomedTransactionError(f"the server has undone the transaction: {error}") from error
            if not self._is_committed(keyed):
                if fault is None:
                    raise  # raised before COMMIT, by an event listener of the application's session
                raise self._unknown(error, fault) from error
            log.warning("commit_answer_lost", extra={"keys": len(keyed)})
        except BaseException:
            unit.close(reuse=False)
            raise
        finally:
            unit.close()
        return [True] * len(completions)

    def _is_committed(self, completions: Sequence[Completion]) -> bool:
        """Whether another connection sees these claims. False proves nothing: the COMMIT may still succeed."""
        claims = [completion.claim for completion in completions]
        try:
            return self.store.connections.run(self._ledger.are_committed, claims)
        except StoreError:
            return False

    def _unknown(self, error: Exception, fault: Fault) -> StoreError:
        if fault is Fault.DISCONNECTED:
            return CommitUnknownError(
                f"the connection was lost during COMMIT: {' '.join(str(error).split())}"
            )
        return as_store_error(error, self.store.engine, self.store.table)

    def _release(self, claim: Claim, failure: Failure | None) -> Released:
        return self._release_many([(claim, failure)])[0]

    def _release_many(self, releases: Sequence[tuple[Claim, Failure | None]]) -> list[Released]:
        """Roll back; then record each failure in a transaction of its own."""
        for claim, _ in releases:
            claim.unit.close()
        atomically = self.store.connections.run_atomically
        escaped = self._escaped([claim for claim, _ in releases if claim.key and not claim.unit.committed])
        return [
            atomically(self._ledger.condemn, claim)
            if claim in escaped
            else atomically(self._ledger.note_failure, claim, failure)
            if failure and claim.key
            else Released(owned=True)
            for claim, failure in releases
        ]

    def _escaped(self, claims: Sequence[Claim]) -> set[Claim]:
        """Claims committed although their unit was not: a handler ended the transaction through a raw cursor."""
        return self.store.connections.run(self._ledger.committed, claims) if claims else set()

    def ignore(self, request: ClaimRequest, claim: Claim) -> None:
        """Roll back the handler's writes, and record the key in a transaction of its own."""
        claim.unit.close()
        decision = self.desk.claim(changed(request, owner=claim.owner))
        if decision.claim:
            self.desk.complete(decision.claim)
        elif decision.verdict is not Verdict.DUPLICATE:
            raise StoreBusyError(f"{claim.key} was not recorded: another delivery holds it. Try again.")

    def claim_nothing(self) -> Claim:
        return self._units.open_empty()

    def isolated(self, claim: Claim, takes: type | None) -> AbstractContextManager[object]:
        """A savepoint around one handler of a group, with `savepoints=True`."""
        unit: Unit = claim.unit
        return unit.savepoint(takes)

    def forget(self, claim: Claim) -> None:
        self._ledger.forget(claim.unit.driver, claim)

    def is_transient(self, claim: Claim, error: Exception) -> bool:
        """Whether the database rolled back the handler's transaction, or the connection was lost."""
        if isinstance(error, DoomedTransactionError) or claim.unit.undone:
            return True
        # The unit does not see errors of a raw cursor. A ConnectionError may come from another service: no proof.
        driver_error = self.store.engine.dialect.loaded_dbapi.Error
        return isinstance(error, driver_error) and self._units.fault(error) in UNDONE

    def handler_argument(self, claim: Claim, kind: type) -> Any:
        unit: Unit = claim.unit
        known = unit.arguments.get(kind)
        if known is not None:
            return known
        if not issubclass(kind, (Session, Connection)):
            raise ConfigurationError(f"a handler takes a Session or a Connection, not {kind.__name__}")
        return unit.argument(kind)

    @cached_property
    def _gc_leader(self) -> SqlChecker:
        # A transaction would lock out the deletes; a leased key does not.
        return SqlChecker(self.store.engine, table=self.store.table, lease_s=_GC_LEASE_S)

    def _garbage_collect(self, limit: int) -> int:
        return self.store.connections.run(self._ledger.delete_expired, limit)

    def close(self) -> None:
        super().close()
        self._units.close()
        self.store.close()
        self._gc_leader.close()


def _unit_of(claims: Sequence[Claim]) -> Unit:
    units = {id(claim.unit): claim.unit for claim in claims}
    if len(units) != 1:
        raise ConfigurationError("claims of different transactions cannot complete together")
    unit: Unit = next(iter(units.values()))
    return unit
