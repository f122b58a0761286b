"""TransactionalSqlChecker: the key commits in the transaction of the handler's own writes, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Final

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from idempotent.admin import KeyAdmin
from idempotent.checkers.base import DEFAULT_RETENTION_S, AbstractIdempotentChecker
from idempotent.checkers.sql.admin import SqlKeyAdmin
from idempotent.checkers.sql.checker import SqlChecker
from idempotent.checkers.sql.keytable import Claiming, KeyTable, key_hash
from idempotent.checkers.sql.store import SqlStore
from idempotent.checkers.sql.unit import SessionFactory, Unit
from idempotent.claims import (
    Claim,
    ClaimRequest,
    Completion,
    Decision,
    Failure,
    Guarantee,
    KeyStatus,
    Released,
    Verdict,
)
from idempotent.errors import (
    CommitUnknownError,
    ConfigurationError,
    DoomedTransactionError,
    StoreBusyError,
    StoreError,
)
from idempotent.schema import DEFAULT_TABLE
from idempotent.stores.sql.cursor import DriverConnection
from idempotent.stores.sql.detached import DetachedConnections
from idempotent.stores.sql.faults import Fault, as_store_error, fault_of
from idempotent.values import changed

log = logging.getLogger(__name__)

_CLAIM_TRIES: Final = 3
_ESCAPED: Final = "effect unknown: the handler ended its transaction by itself; look, then resolve the key"
_GC_LEASE_S: Final = 60.0
_UNDONE: Final = (Fault.ABORTED, Fault.LOCKED, Fault.DISCONNECTED)


class TransactionalSqlChecker(AbstractIdempotentChecker):
    """One transaction: the key's INSERT, the handler's writes, COMMIT. Nothing can come between them.

    The handler gets the transaction as its second parameter, a `Session` or a `Connection` by its annotation, and
    writes only through it. It must not end it; an exception rolls back its writes, always.

    A group claims all its keys in one statement, runs its handlers, and commits once. If one of them fails,
    everything is rolled back and each message runs again in a transaction of its own; with `savepoints=True` a
    failed handler is undone alone.

    Args:
        engine_or_url: an SQLAlchemy engine, URL or `sessionmaker`; the database of the handlers' writes.
        table: the key table, in the same database; make it with `idempotent.migrations.upgrade(url)`.
        retention_s: seconds a key is remembered, counted from its claim.
        lock_timeout_s: seconds a claim waits for another transaction that holds its key, before it answers
            IN_PROGRESS. On SQLite the file's busy timeout (the engine's `timeout`) applies instead.
        savepoints: isolate the handlers of a group from each other (half as fast).
        strict: also detect a transaction that was ended through a raw cursor (two more round trips).

    Raises:
        ConfigurationError: a wrong URL, table name or duration.
        MissingExtraError: the database's driver is not installed.
    """

    group_is_atomic = True

    def __init__(
        self,
        engine_or_url: Engine | URL | str | sessionmaker[Session],
        *,
        table: str = DEFAULT_TABLE,
        retention_s: float = DEFAULT_RETENTION_S,
        lock_timeout_s: float = 5.0,
        savepoints: bool = False,
        strict: bool = False,
    ) -> None:
        """Check the arguments; connect at the first claim."""
        super().__init__(lease_s=None, retention_s=retention_s)
        if not lock_timeout_s > 0:
            raise ConfigurationError(f"lock_timeout_s must be positive seconds, not {lock_timeout_s!r}")
        self._factory: SessionFactory = Session
        if isinstance(engine_or_url, sessionmaker):
            self._factory = engine_or_url
            engine_or_url = _engine_of(engine_or_url)
        self.store: Final = SqlStore(engine_or_url, table)
        self.lock_timeout_s: Final = lock_timeout_s
        self._units = DetachedConnections(self.store.engine, autocommit=False)
        self.isolates = savepoints
        self.strict: Final = strict

    @property
    def guarantee(self) -> Guarantee:
        """Transactional."""
        return Guarantee.TRANSACTIONAL

    @cached_property
    def _keys(self) -> KeyTable:
        return self.store.keys(lease_s=None, retention_s=self.retention_s)

    def admin(self) -> KeyAdmin:
        """Look at the keys, and decide about those that wait for a person."""
        return SqlKeyAdmin(self.store)

    def _claim(self, request: ClaimRequest) -> Decision:
        try:
            return self._open([request], self.lock_timeout_s)[0]
        except StoreBusyError:
            # Somebody's transaction has held the key for as long as we wait; it decides. (Or the file, on SQLite,
            # which cannot tell the two apart, or deadlocks, several times in a row.)
            return Decision(Verdict.IN_PROGRESS, retry_after_s=min(self.lock_timeout_s, 1.0))

    def _claim_many(self, requests: Sequence[ClaimRequest]) -> list[Decision]:
        # Not waiting: one busy key must not stall the others. The caller takes them one by one then.
        return self._open(requests, 0.0)

    def _open(self, requests: Sequence[ClaimRequest], wait_s: float) -> list[Decision]:
        """Begin a unit and claim in it; the unit stays open iff something was acquired."""
        for remaining in reversed(range(_CLAIM_TRIES)):
            unit: Unit | None = None
            try:
                unit = self._begin()
                decisions = self._claim_in(unit, requests, wait_s)
                if not any(decision.claim for decision in decisions):
                    unit.close()
                    return decisions
                unit.guard()
            except Exception as error:
                if unit is not None:
                    unit.close()
                fault = self._fault(error)
                if fault is None:
                    raise
                if fault is Fault.DISCONNECTED:
                    self._units.close()  # the server may have closed every idle one with this one
                if remaining and fault in (Fault.ABORTED, Fault.DISCONNECTED):
                    continue
                raise as_store_error(error, self.store.engine, self.store.table) from error
            except BaseException:
                if unit is not None:
                    unit.close()
                raise
            return [_in_unit(decision, unit) for decision in decisions]
        raise AssertionError("unreachable")

    def _claim_in(self, unit: Unit, requests: Sequence[ClaimRequest], wait_s: float) -> list[Decision]:
        """Claim in an open unit, waiting so long for other transactions."""
        return self._keys.claim(unit.driver, requests, Claiming(KeyStatus.DONE, locking=True, wait_s=wait_s))

    def claim_nothing(self) -> Claim:
        """A transaction without a key, for a handler that is allowed to run without one.

        Raises:
            StoreError: the database did not answer.
        """
        unit: Unit | None = None
        try:
            unit = self._begin()
            unit.guard(keyed=False)
        except BaseException as error:
            if unit is not None:
                unit.close()
            if self._fault(error) is None:
                raise
            raise as_store_error(error, self.store.engine, self.store.table) from error
        return Claim(None, unit=unit)

    def _begin(self) -> Unit:
        dialect = self.store.connections.dialect
        return Unit(self._units, dialect, self._factory, strict=self.strict)

    def _complete(self, completion: Completion) -> bool:
        return self._complete_many([completion])[0]

    def _complete_many(self, completions: Sequence[Completion]) -> list[bool]:
        """Commit the unit of these claims, which must be all that it still has."""
        unit = _unit_of([completion.claim for completion in completions])
        keyed = [completion for completion in completions if completion.claim.key]
        try:
            unit.flush()
            unit.demand_alive()
            for completion in keyed:
                self._store_result(unit, completion)
        except BaseException as error:
            unit.close()
            if isinstance(error, Exception) and self._fault(error) in _UNDONE:
                raise DoomedTransactionError(f"the server has undone the transaction: {error}") from error
            raise  # what a handler's own statement raises late is its failure
        try:
            unit.commit()
        except Exception as error:
            unit.close()
            fault = self._fault(error)
            if fault is Fault.REFUSED:
                raise  # a deferred constraint: the handler's failure
            if fault in (Fault.ABORTED, Fault.LOCKED):
                raise DoomedTransactionError(f"the server has undone the transaction: {error}") from error
            if not self._is_committed(keyed):
                if fault is None:
                    raise  # an event of the application's session, before COMMIT
                raise self._unknown(error, fault) from error
            log.warning("commit_answer_lost", extra={"keys": len(keyed)})
        finally:
            unit.close()
        return [True] * len(completions)

    def _is_committed(self, completions: Sequence[Completion]) -> bool:
        """Whether keys of a unit are on record with our owner, seen on another connection.

        Only a yes proves something: the old transaction may still be about to commit.
        """
        claims = [completion.claim for completion in completions]
        try:
            return self.store.connections.run(self._are_committed, claims)
        except StoreError:
            return False

    def _are_committed(self, driver: DriverConnection, claims: Sequence[Claim]) -> bool:
        wanted = {(key_hash(claim), claim.owner) for claim in claims}
        found = self._keys.owners(driver, [hashed for hashed, _ in wanted])
        return bool(wanted) and wanted <= {(hashed, owner) for hashed, owner, _ in found}

    def _store_result(self, unit: Unit, completion: Completion) -> None:
        if completion.result is not None:
            self._keys.complete(unit.driver, completion)

    def _unknown(self, error: Exception, fault: Fault) -> StoreError:
        if fault is Fault.DISCONNECTED:
            return CommitUnknownError(
                f"the connection was lost during COMMIT: {' '.join(str(error).split())}"
            )
        return as_store_error(error, self.store.engine, self.store.table)

    def _release(self, claim: Claim, failure: Failure | None) -> Released:
        return self._release_many([(claim, failure)])[0]

    def _release_many(self, releases: Sequence[tuple[Claim, Failure | None]]) -> list[Released]:
        """Roll back; then note the failures in transactions of their own."""
        for claim, _ in releases:
            claim.unit.close()
        escaped = self._escaped([claim for claim, _ in releases if claim.key and not claim.unit.committed])
        return [
            self._condemn(claim)
            if claim in escaped
            else self._note(claim, failure)
            if failure and claim.key
            else Released(owned=True)
            for claim, failure in releases
        ]

    def _escaped(self, claims: Sequence[Claim]) -> set[Claim]:
        """Claims that were committed although their unit was not: a handler ended the transaction by a raw cursor."""
        if not claims:
            return set()
        hashes = [key_hash(claim) for claim in claims]
        found = self.store.connections.run(self._keys.owners, hashes)
        committed = {(hashed, owner) for hashed, owner, _ in found}
        return {claim for claim in claims if (key_hash(claim), claim.owner) in committed}

    def _condemn(self, claim: Claim) -> Released:
        """Nobody knows which effects were committed with the key: a person has to look."""
        log.error("transaction_escaped", extra={"key": str(claim.key)})
        return self.store.connections.run_atomically(self._keys.condemn, claim, _ESCAPED)

    def _note(self, claim: Claim, failure: Failure) -> Released:
        return self.store.connections.run_atomically(self._note_failure, claim, failure)

    def _note_failure(self, driver: DriverConnection, claim: Claim, failure: Failure) -> Released:
        # Somebody else may have processed the key since the rollback: then the failure is history.
        return self._keys.fail_free(driver, claim, failure)

    def ignore(self, request: ClaimRequest, claim: Claim) -> None:
        """Roll back what the handler wrote, and record the key alone.

        Raises:
            StoreError: not recorded.
        """
        claim.unit.close()
        decision = self.claim(changed(request, owner=claim.owner))
        if decision.claim:
            self.complete(decision.claim)
        elif decision.verdict is not Verdict.DUPLICATE:
            raise StoreBusyError(f"{claim.key} could not be recorded: somebody holds it. Try again.")

    def isolated(self, claim: Claim, takes: type | None) -> AbstractContextManager[object]:
        """A savepoint around one handler of a group, with `savepoints=True`."""
        unit: Unit = claim.unit
        return unit.savepoint(takes)

    def forget(self, claim: Claim) -> None:
        """Take one key out of an open group whose handler was undone by its savepoint."""
        self._keys.forget(claim.unit.driver, claim)

    def is_transient(self, claim: Claim, error: Exception) -> bool:
        """Whether the database undid the transaction, or was lost, under the handler."""
        if isinstance(error, DoomedTransactionError) or claim.unit.undone:
            return True
        # A raw cursor's error is not seen by the unit; a ConnectionError of somebody else's is not the database's.
        driver_error = self.store.engine.dialect.loaded_dbapi.Error
        return isinstance(error, driver_error) and self._fault(error) in _UNDONE

    def handler_argument(self, claim: Claim, kind: type) -> Any:
        """The unit's Session or Connection.

        Raises:
            ConfigurationError: the handler asks for something else.
        """
        unit: Unit = claim.unit
        known = unit.arguments.get(kind)
        if known is not None:
            return known
        if not issubclass(kind, (Session, Connection)):
            raise ConfigurationError(f"a handler takes a Session or a Connection, not {kind.__name__}")
        return unit.argument(kind)

    @cached_property
    def _gc_leader(self) -> SqlChecker:
        # A lock that is a transaction would stand in the way of the deletes; a leased key does not.
        return SqlChecker(self.store.engine, table=self.store.table, lease_s=_GC_LEASE_S)

    def _garbage_collect(self, limit: int) -> int:
        return self.store.connections.run(self._keys.delete_expired, limit)

    def close(self) -> None:
        """Close the checker's own connections. Idempotent."""
        super().close()
        self._units.close()
        self.store.connections.close()
        self._gc_leader.close()

    def _fault(self, error: BaseException) -> Fault | None:
        """What kind of database error this is; None when it is none."""
        engine = self.store.engine
        if isinstance(error, (DBAPIError, PoolTimeoutError, engine.dialect.loaded_dbapi.Error, OSError)):
            return fault_of(error, engine)
        return None


def _in_unit(decision: Decision, unit: Unit) -> Decision:
    claim = decision.claim
    if claim is None:
        return decision
    # A lapsed lease is that of a leased checker on the same table. Its attempt is not counted here (`alone`): that
    # would need another transaction, and this one holds the key.
    return Decision(
        decision.verdict,
        Claim(claim.key, claim.fence, claim.owner, unit, claim.partition),
        lapsed=decision.lapsed,
    )


def _unit_of(claims: Sequence[Claim]) -> Unit:
    units = {id(claim.unit): claim.unit for claim in claims}
    if len(units) != 1:
        raise ConfigurationError("claims of different transactions cannot complete together")
    unit: Unit = next(iter(units.values()))
    return unit


def _engine_of(factory: sessionmaker[Session]) -> Engine:
    bind = factory.kw.get("bind")
    if not isinstance(bind, Engine):
        raise ConfigurationError(
            "the sessionmaker has no engine: write sessionmaker(engine) - one engine, because key and effect "
            "have to commit in one transaction"
        )
    return bind
