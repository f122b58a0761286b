"""ClaimRecorder: what a transactional checker writes of a claim in the handler's transaction. KeyRecorder: its key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Final

from idempotent.checkers.durations import Durations
from idempotent.checkers.sql.failures import FailedAttempt, FailureTable
from idempotent.checkers.sql.keytable import ClaimMode, KeyTable
from idempotent.checkers.sql.store import SqlStore
from idempotent.claims import Claim, ClaimRequest, Completion, Decision, KeyStatus, Released
from idempotent.errors import StoreBusyError, StoreError
from idempotent.logs import EventLog
from idempotent.observe.counting import CountEvent
from idempotent.observe.log_lines import about_key
from idempotent.stores.sql.cursor import DriverConnection

log = EventLog(__name__)

_ESCAPED: Final = "effect unknown: the handler itself ended its transaction; look, then resolve the key"


class ClaimRecorder(ABC):
    """Records claims in one database, so that each message takes effect once.

    All methods but `count_failure` take a driver connection: that of the handlers' transaction, or another one, in
    autocommit or in a transaction of its own.

    Args:
        store: the database.
        durations: how long records are remembered.
        count: counts a result that is not stored.
    """

    def __init__(self, store: SqlStore, durations: Durations, count: CountEvent) -> None:
        self._store = store
        self._durations = durations
        self._count = count

    @cached_property
    def failures(self) -> FailureTable:
        """The attempts of its keys or positions.

        Raises:
            StoreError: the database did not answer when asked for its version.
        """
        return FailureTable(self._store.connections.dialect, self._store.table, self._durations.retention_us)

    @abstractmethod
    def claim(
        self, driver: DriverConnection, requests: Sequence[ClaimRequest], wait_s: float
    ) -> list[Decision]:
        """Claim in an open transaction, waiting at most `wait_s` seconds for other transactions."""

    @abstractmethod
    def complete(self, driver: DriverConnection, completion: Completion, took_s: float) -> None:
        """Record in the handler's transaction that its message is done.

        Args:
            driver: the connection of the transaction.
            completion: the claim, and what the handler returned.
            took_s: seconds since the claim was made.
        """

    @abstractmethod
    def stored(self, driver: DriverConnection, claims: Sequence[Claim]) -> set[Claim]:
        """Those of these claims that this connection sees stored with their owners."""

    def are_stored(self, driver: DriverConnection, claims: Sequence[Claim]) -> bool:
        """Whether this connection sees all these claims stored with their owners."""
        return bool(claims) and len(self.stored(driver, claims)) == len(claims)

    @abstractmethod
    def mark_committed_dead(self, driver: DriverConnection, claim: Claim) -> Released:
        """Make a claim DEAD for a person to resolve: its handler ended the transaction itself. Needs a transaction."""

    @abstractmethod
    def count_failure(self, failed: FailedAttempt) -> Released:
        """Count an attempt at a claim that was rolled back, in a transaction of its own.

        Raises:
            StoreError: the database did not answer; the failure may be counted.
        """

    @abstractmethod
    def forget(self, driver: DriverConnection, claim: Claim) -> None:
        """Remove one claim from an open transaction that continues without it."""

    @abstractmethod
    def delete_expired(self, driver: DriverConnection, limit: int) -> int:
        """Delete at most `limit` expired records. Returns how many keys were deleted."""


class KeyRecorder(ClaimRecorder):
    """One row for each message, in the key table."""

    @cached_property
    def keys(self) -> KeyTable:
        """The key table.

        Raises:
            StoreError: the database did not answer when asked for its version.
        """
        return KeyTable(self._store.connections.dialect, self._store.table, self._durations, self._count)

    def claim(
        self, driver: DriverConnection, requests: Sequence[ClaimRequest], wait_s: float
    ) -> list[Decision]:
        mode = ClaimMode(KeyStatus.DONE, locking=True, wait_s=wait_s)
        return self.keys.claim(driver, requests, mode)

    def complete(self, driver: DriverConnection, completion: Completion, took_s: float) -> None:
        # The claim made the key DONE: only a result, or an expiry that is near by now, needs another statement.
        if completion.result is not None or took_s > self._durations.retention_s / 2:
            self.keys.complete(driver, completion)

    def stored(self, driver: DriverConnection, claims: Sequence[Claim]) -> set[Claim]:
        found = self.keys.owners(driver, [claim.key.hash for claim in claims])
        owners = {(hashed, owner) for hashed, owner, _ in found}
        return {claim for claim in claims if (claim.key.hash, claim.owner) in owners}

    def mark_committed_dead(self, driver: DriverConnection, claim: Claim) -> Released:
        log.error("transaction_escaped", extra=about_key(claim.key))
        return self.keys.mark_committed_dead(driver, claim, _ESCAPED)

    def count_failure(self, failed: FailedAttempt) -> Released:
        """Count an attempt at a claim that was rolled back, and make its key DEAD or hold it.

        Each in a transaction of its own: a copy of the message may hold the key by now, and the count must stay. That
        copy, if it fails as well, tries again, or counts nothing; this delivery is dead in any case.
        """
        atomically = self._store.connections.run_atomically
        released = atomically(self.keys.fail_free, failed)
        if released.dead:
            with suppress(StoreBusyError):
                atomically(self.keys.mark_free_key_dead, failed.claim)
        elif released.owned and failed.failure.delay_us(released.attempts):
            with suppress(StoreError):
                atomically(self.keys.hold, failed)
        return released

    def forget(self, driver: DriverConnection, claim: Claim) -> None:
        self.keys.forget(driver, claim)

    def delete_expired(self, driver: DriverConnection, limit: int) -> int:
        return self.keys.delete_expired(driver, limit)
