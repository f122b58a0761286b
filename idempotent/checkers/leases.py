"""One background thread renews the leases of all claims in flight of one checker."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Final

from idempotent.claims import Claim
from idempotent.errors import StoreError
from idempotent.forks import generation

log = logging.getLogger(__name__)

_ABSENT: Final = object()


class NoLeases:
    """Replaces the LeaseKeeper of a checker whose claims never lapse."""

    def hold(self, claims: Sequence[Claim]) -> None:
        """Do nothing."""

    def drop(self, claims: Sequence[Claim]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class LeaseKeeper:
    """Renews every held claim each third of the lease.

    A failed renewal cancels nothing: the handler continues, and the next round tries again. If the lease was lost, the
    conditional completion reports it.

    Args:
        renew: renews claims in one statement; False for each claim that is no longer owned.
        lease_s: the lease, in seconds.
    """

    def __init__(self, renew: Callable[[Sequence[Claim]], list[bool]], lease_s: float) -> None:
        # A weak reference: an unused checker is collected, and its thread ends.
        self._renew = weakref.WeakMethod(renew)
        self._interval_s = lease_s / 3
        self._held: dict[Claim, None] = {}
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._wake = threading.Event()
        self._generation = generation.number

    def hold(self, claims: Sequence[Claim]) -> None:
        """Renew these from now on."""
        if self._generation != generation.number:
            self._forget_parent()
        # Claims are compared by identity. Changing a dict's entry is atomic in CPython, so no message takes a lock.
        held = self._held
        for claim in claims:
            held[claim] = None
        if self._thread is None and claims:
            self._start()

    def drop(self, claims: Sequence[Claim]) -> None:
        """Renew these no longer."""
        held = self._held
        for claim in claims:
            held.pop(claim, None)

    def close(self) -> None:
        """Stop renewing everything."""
        self._held.clear()
        with self._start_lock:
            self._wake.set()
            self._thread = None  # a claim that is held after this starts a new one

    def _forget_parent(self) -> None:
        # After fork() the thread is gone and the claims are the parent's.
        self._held = {}
        self._thread = None
        self._start_lock = threading.Lock()
        self._wake = threading.Event()
        self._generation = generation.number  # last: until then every thread repeats this

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is None:
                self._wake = threading.Event()
                self._thread = threading.Thread(
                    target=_run, args=(weakref.ref(self), self._wake, self._interval_s), daemon=True
                )
                self._thread.name = "idempotent-leases"
                self._thread.start()

    def _renew_all(self) -> bool:
        """One round of renewals; False: the checker was collected, so the thread ends."""
        renew = self._renew()
        if renew is None:
            return False
        claims = list(self._held)
        if not claims:
            return True
        try:
            kept = list(zip(claims, renew(claims), strict=True))
        except Exception as error:
            # Even a bug in a checker must not end this thread: it renews the leases of all other claims.
            level = logging.WARNING if isinstance(error, StoreError) else logging.ERROR
            log.log(level, "lease_renewal_failed", extra={"claims": len(claims), "error": repr(error)})
            return True
        for claim, still_owned in kept:
            if not still_owned and self._held.pop(claim, _ABSENT) is not _ABSENT:
                log.warning("lease_lost", extra={"key": str(claim.key)})
        return True


def _run(keeper_ref: weakref.ref[LeaseKeeper], wake: threading.Event, interval_s: float) -> None:
    while not wake.wait(interval_s):
        keeper = keeper_ref()
        if keeper is None or not keeper._renew_all():  # noqa: SLF001 - the keeper's own thread
            return
        del keeper
