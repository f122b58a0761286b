"""BucketLeases: the buckets of a broker's messages that one relay has at the moment."""

from __future__ import annotations

import random
import threading
import time
from typing import Final

from idempotent.errors import StoreError
from idempotent.logs import EventLog
from idempotent.observe.sparse import Sparse
from idempotent.outbox.relays.lease_table import LeaseTable
from idempotent.outbox.sql import Statements
from idempotent.outbox.store import OutboxStore

log = EventLog(__name__)

_MICROSECONDS: Final = 1_000_000
_PRESENCES: Final = 2**31 - 1
# The part of a lease in which a bucket is used without asking again. The clocks of two machines differ in speed.
_CERTAIN: Final = 0.8


class BucketLeases:
    """Takes a fair share of the buckets, and renews the leases in a thread of its own.

    All times are by the clock of the database, except that a relay stops using a bucket, by its own clock, before the
    lease can have ended.

    Args:
        store: the outbox.
        destination: the name of the broker.
        owner: the relay, which is the same for all its brokers.
        lease_s: seconds that a lease lasts without renewal.
    """

    def __init__(self, store: OutboxStore, destination: str, owner: bytes, lease_s: float) -> None:
        self._store = LeaseTable(store, destination)
        self._destination: Final = destination
        self._lease_s = lease_s
        self._lease_us = round(lease_s * _MICROSECONDS)
        self._owner: Final = owner
        self._buckets: set[int] = set()
        self._shown: set[int] | None = None
        self._known_until = 0.0
        self._next_look = 0.0
        self._slot = 0
        self._told = Sparse()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to renew."""
        self._thread = threading.Thread(target=self._renew, name="idempotent-relay-leases", daemon=True)
        self._thread.start()

    @property
    def buckets(self) -> set[int]:
        """The buckets that this relay has for certain.

        Raises:
            StoreError: the database did not answer, and the leases may end.
        """
        now = time.monotonic()
        if now >= self._next_look or now >= self._known_until:
            self._look(now)
        return self._buckets

    def stop(self) -> None:
        """Give all buckets back. Never raises."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(self._lease_s)
        self._buckets = set()
        if not self._slot:  # it never reached the database
            return
        try:
            self._store.depart(self._owner)
        except StoreError as error:
            log.warning("relay_leases_kept", extra={"error": str(error), "lease_s": self._lease_s})

    def _look(self, now: float) -> None:
        """Take and give back buckets, so that each relay has its share."""
        if not self._store.is_announced(self._slot, self._owner):
            self._slot = -1 - random.randrange(_PRESENCES)
            self._store.announce(self._slot, self._owner, self._lease_us)
        self._store.renew(self._owner, self._lease_us)
        relays = max(self._store.relays(), 1)
        buckets = Statements.buckets
        share = -(-len(buckets) // relays)
        mine = self._store.taken(self._owner)
        left_behind: set[int] = set()
        if len(mine) < share:
            free = self._store.free()
            # Shuffled: relays that start together would try for the same ones.
            wanted = random.sample(sorted(free), min(share - len(mine), len(free)))
            left_behind = {slot for slot in wanted if free[slot]}
            if wanted:
                self._store.take(wanted, self._owner, self._lease_us)
        elif len(mine) > share:
            self._store.leave(self._owner, sorted(mine)[share:])
        taken = self._store.taken(self._owner)
        self._tell(taken, len(left_behind & taken), relays)
        self._buckets = taken
        self._known_until = now + self._lease_s * _CERTAIN
        self._next_look = now + self._lease_s / 6

    def _tell(self, taken: set[int], left_behind: int, relays: int) -> None:
        if left_behind:
            log.warning(
                "relay_leases_ended", extra={"destination": self._destination, "buckets": left_behind}
            )
        if taken != self._shown:
            self._shown = taken
            log.info(
                "relay_buckets",
                extra={"destination": self._destination, "buckets": len(taken), "relays": relays},
            )

    def _renew(self) -> None:
        while not self._stopped.wait(self._lease_s / 3):
            try:
                self._store.renew(self._owner, self._lease_us)
            except Exception as error:  # the next round tries again
                more = self._told.take()
                if more is not None:
                    log.warning("relay_renewal_failed", extra={"error": str(error), "more": more})
