"""Units: opens transactions on the checker's own connections, and claims in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from idempotent.checkers.sql.ledgers import Ledger
from idempotent.checkers.sql.sessions import Sessions
from idempotent.checkers.sql.store import SqlStore
from idempotent.checkers.sql.unit import Unit
from idempotent.claims import Claim, ClaimRequest, Decision
from idempotent.keys import NO_KEY
from idempotent.stores.sql.detached import DetachedConnections
from idempotent.stores.sql.faults import KEPT, Fault, as_store_error, fault_of

_CLAIM_TRIES: Final = 3


class Units:
    """The open transactions of one checker.

    Args:
        store: the database.
        ledger: records the claims.
        sessions: makes the handlers' Session on the connection.
        strict: see `Unit`.
    """

    _kind: type[DetachedConnections] = DetachedConnections

    def __init__(self, store: SqlStore, ledger: Ledger, sessions: Sessions, *, strict: bool) -> None:
        self._store = store
        self._ledger = ledger
        self.sessions: Final = sessions
        self._strict = strict
        self._connections = self._kind(store.engine, autocommit=False)

    def open(self, requests: Sequence[ClaimRequest], wait_s: float) -> list[Decision]:
        """Begin a unit and claim in it; the unit stays open if a key was acquired.

        Args:
            requests: at most one for each key.
            wait_s: the longest wait for another transaction, in seconds.

        Raises:
            StoreError: the database did not answer.
        """
        for remaining in reversed(range(_CLAIM_TRIES)):
            unit: Unit | None = None
            try:
                unit = self._begin()
                decisions = self._ledger.claim(unit.driver, requests, wait_s)
                if not any(decision.claim for decision in decisions):
                    unit.commit()  # a lapsed key may have been parked
                    unit.close()
                    return decisions
                unit.guard()
            except BaseException as error:
                fault = self.fault(error)
                raw = None if unit is None else unit.driver.raw
                failed = fault and as_store_error(error, self._store.engine, self._store.table, raw)
                if unit is not None:
                    unit.close(reuse=fault in KEPT)
                if failed is None:
                    raise
                if fault not in KEPT:
                    self._connections.close()
                if remaining and fault in (Fault.ABORTED, Fault.DISCONNECTED):
                    continue
                raise failed from error
            return [_in_unit(decision, unit) for decision in decisions]
        raise AssertionError("unreachable")

    def open_empty(self) -> Claim:
        """Begin a unit without a key.

        Raises:
            StoreError: the database did not answer.
        """
        unit: Unit | None = None
        try:
            unit = self._begin()
            unit.guard(keyed=False)
        except BaseException as error:
            fault = self.fault(error)
            if unit is not None:
                unit.close(reuse=fault in KEPT)
            if fault is None:
                raise
            raise as_store_error(error, self._store.engine, self._store.table) from error
        return Claim(NO_KEY, unit=unit)

    def forget(self, claim: Claim) -> None:
        """Remove one claim from its unit, which continues without it."""
        self._ledger.forget(claim.unit.driver, claim)

    def close(self) -> None:
        """Close idle connections; a connection in use is closed when its unit ends."""
        self._connections.close()

    def fault(self, error: BaseException) -> Fault | None:
        """The kind of a database error; None: the error does not come from the database."""
        engine = self._store.engine
        if isinstance(error, (DBAPIError, PoolTimeoutError, engine.dialect.loaded_dbapi.Error, OSError)):
            return fault_of(error, engine)
        return None

    def _begin(self) -> Unit:
        dialect = self._store.connections.dialect
        return Unit(self._connections, dialect, self.sessions, strict=self._strict)


def _in_unit(decision: Decision, unit: Unit) -> Decision:
    claim = decision.claim
    if claim is None:
        return decision
    # A leased checker on the same table may have left a lapsed claim. Its attempt is not counted (so `alone` is not
    # copied): that would need a second transaction, and this one has locked the key.
    return Decision(
        decision.verdict,
        Claim(
            claim.key,
            claim.fence,
            claim.owner,
            unit,
            claim.partition,
            claim.attempt,
            claim.max_attempts,
        ),
        lapsed=decision.lapsed,
    )
