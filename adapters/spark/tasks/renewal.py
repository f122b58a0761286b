"""Renewal: a thread that keeps the leases of pending claims from ending."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from idempotent.errors import StoreError
from idempotent.logs import EventLog

log = EventLog(__name__)
_TIMES_A_LEASE: Final = 3


class Renewal:
    """Renews the leases of keys that were just acquired, three times a lease, and knows which keys were lost.

    Args:
        renew: renews these keys; returns those that this attempt still holds.
        hashes: of the keys.
        lease_s: seconds of one lease.
    """

    def __init__(self, renew: Callable[[set[bytes]], set[bytes]], hashes: set[bytes], lease_s: float) -> None:
        """Count from now: the leases have just begun."""
        self._renew_keys = renew
        self._hashes = hashes
        self._lease_s = lease_s
        self._safe_until = time.monotonic() + lease_s - lease_s / _TIMES_A_LEASE
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="idempotent-renewal", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the thread."""
        self.stop()

    @property
    def outstanding(self) -> set[bytes]:
        """Keys that this attempt holds and has not forgotten."""
        return set(self._hashes)

    def holds(self, key_hash: bytes) -> bool:
        """Whether this attempt holds the key for at least a third of a lease from now; asks the store when in doubt.

        Raises:
            StoreError: the store did not answer.
        """
        if time.monotonic() > self._safe_until:
            self._renew()
        return key_hash in self._hashes

    def forget(self, key_hash: bytes) -> None:
        """Stop renewing the lease of one key."""
        with self._lock:
            self._hashes.discard(key_hash)

    def stop(self) -> None:
        """Stop renewing, and wait for the thread."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._lease_s / _TIMES_A_LEASE):
            try:
                self._renew()
            except StoreError as error:
                # The next renewal may succeed; until then `holds` asks the store.
                log.warning("claims_not_renewed", extra={"error": str(error)})

    def _renew(self) -> None:
        with self._lock:
            if not self._hashes:
                return
            asked = time.monotonic()
            self._hashes &= self._renew_keys(set(self._hashes))
            self._safe_until = asked + self._lease_s - self._lease_s / _TIMES_A_LEASE
