"""BucketLeases: the buckets of a broker's messages that one relay has at the moment."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Final

from idempotent.checkers.repeating import RepeatingThread
from idempotent.errors import StoreError
from idempotent.logs import EventLog
from idempotent.observe.log_lines import LogThrottle
from idempotent.outbox.entries import BUCKETS
from idempotent.outbox.store import AHEAD_US, OutboxStore, numbers
from idempotent.schema import LANE_BYTES
from idempotent.stores.sql.faults import Fault, fault_of
from idempotent.values import value

log = EventLog(__name__)

_MICROSECONDS: Final = 1_000_000
_PRESENCES: Final = 2**31 - 1
_NO_RELAY: Final = b"\0" * LANE_BYTES
_HINT: Final = "other relays have the rest; one that was killed keeps its buckets until its lease ends"
_NAME_BYTES: Final = 4
_GIVE_BACK: Final = "UPDATE {leases} SET lease_until = 0 WHERE destination = ? AND owner = ?"


@value
class Slot:
    """A row of the table of leases: of a relay, whose number is below 0, or of a bucket.

    Attributes:
        owner: the relay.
        lease_us: how long a lease of that relay lasts; 0: no relay has had the bucket, or it has been given back.
        left_us: microseconds until the lease ends; below 0: it has ended.
    """

    owner: bytes
    lease_us: int
    left_us: int

    @property
    def lives(self) -> bool:
        """Whether the lease has not ended."""
        return self.left_us >= 0


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
        self._store = store
        self._destination: Final = destination
        self._lease_s = lease_s
        self._lease_us = round(lease_s * _MICROSECONDS)
        self._owner: Final = owner
        self._buckets: set[int] = set()
        self._shown: set[int] | None = None
        self._next_look = 0.0
        # Where other relays see this one; 0: it has not reached the database yet.
        self._slot = 0
        self._told = LogThrottle()
        self._renewals = RepeatingThread(self._renew_or_tell, "idempotent-relay-leases", lease_s / 3)

    def start(self) -> None:
        """Begin to renew."""
        self._renewals.start()

    @property
    def buckets(self) -> set[int]:
        """The buckets that this relay has for certain.

        Raises:
            StoreError: the database did not answer, and the leases may end.
        """
        now = time.monotonic()
        if now >= self._next_look:
            self._look(now)
        return self._buckets

    def stop(self) -> None:
        """Give all buckets back, and forget relays whose lease has ended, and this one. Never raises."""
        self._renewals.stop(self._lease_s)
        self._buckets = set()
        if not self._slot:
            return
        try:
            mine = (self._destination, self._owner)
            self._store.change(f"{_GIVE_BACK} AND slot >= 0", *mine)
            self._store.change(
                "DELETE FROM {leases} WHERE destination = ? AND slot < 0 AND (owner = ? OR lease_until < {now})",
                *mine,
            )
        except StoreError as error:
            log.warning("relay_leases_kept", extra={"error": str(error), "lease_s": self._lease_s})

    def announce(self) -> None:
        """Show other relays this one."""
        self._slot = -1 - random.randrange(_PRESENCES)
        self._insert(self._slot, self._owner, self._lease_us)

    def slots(self) -> dict[int, Slot]:
        """The relays and all buckets, by their numbers. A bucket without a row gets one."""
        rows = self._store.ask(
            "SELECT slot, owner, CASE WHEN lease_until = 0 THEN 0 ELSE lease_us END, lease_until - {now}"
            " FROM {leases} WHERE destination = ?",
            self._destination,
        )
        found = {slot: Slot(bytes(owner), *times) for slot, owner, *times in rows}
        missing = sorted({*range(BUCKETS)} - found.keys())
        for bucket in missing:
            self._insert(bucket, _NO_RELAY, 0)
        return self.slots() if missing else found

    def take(self, slots: Sequence[int]) -> None:
        """Take these buckets if no relay has them."""
        if slots:
            self._store.change(
                "UPDATE {leases} SET owner = ?, lease_us = ?, lease_until = {now} + ? WHERE destination = ?"
                f" AND slot IN {numbers(slots)} AND NOT lease_until >= {{now}}",
                *(self._owner, self._lease_us, self._lease_us, self._destination),
            )

    def _look(self, now: float) -> None:
        """Take and give back buckets, so that each relay has its share."""
        self._renew()
        before = self.slots()
        had = self._mine(before)
        if self._slot not in had:  # it is new, or another relay has taken it for dead
            self.announce()
            before = self.slots()
        ahead_us = max(each.left_us - each.lease_us for each in before.values())
        if ahead_us > AHEAD_US:
            self._cut(ahead_us)
            before = self.slots()
        relays = max(sum(slot < 0 and each.lives for slot, each in before.items()), 1)
        share = share_of(relays)
        mine = sorted(slot for slot in had if slot >= 0)
        if len(mine) < share:
            free = [slot for slot, each in before.items() if slot >= 0 and not each.lives]
            # Shuffled: relays that start together would try for the same ones.
            self.take(random.sample(free, min(share - len(mine), len(free))))
        elif len(mine) > share:
            self._store.change(
                f"{_GIVE_BACK} AND slot IN {numbers(mine[share:])}", self._destination, self._owner
            )
        after = {slot for slot in self._mine(self.slots()) if slot >= 0}
        self._tell(before, after, relays)
        self._buckets = after
        # Long before a lease ends: the clocks of two machines differ in speed.
        self._next_look = now + self._lease_s / 6

    def _mine(self, slots: Mapping[int, Slot]) -> set[int]:
        """The buckets of this relay whose lease has not ended; and where other relays see it, if they do."""
        return {
            slot for slot, each in slots.items() if each.owner == self._owner and (slot < 0 or each.lives)
        }

    def _cut(self, ahead_us: int) -> None:
        """The clock of the database went back: a relay that died before would keep its buckets for as long.

        A lease is cut to its length, not ended: its relay may live, and believe that it has the buckets.
        """
        about = {"destination": self._destination, "back_s": round(ahead_us / _MICROSECONDS, 1)}
        cut = self._store.change(
            "UPDATE {leases} SET lease_until = {now} + lease_us WHERE destination = ?"
            " AND lease_until - lease_us > {now}",
            self._destination,
        )
        log.warning("relay_clock_went_back", extra={**about, "leases": cut})

    def _tell(self, before: Mapping[int, Slot], after: set[int], relays: int) -> None:
        left_behind = sum(not before[slot].lives and before[slot].lease_us > 0 for slot in after)
        if left_behind:
            log.warning(
                "relay_leases_ended", extra={"destination": self._destination, "buckets": left_behind}
            )
        if after == self._shown:
            return
        self._shown = after
        # Less than what is left when all others have their share.
        lacks = len(after) < BUCKETS - (relays - 1) * share_of(relays)
        others: dict[str, float] = {}
        for slot, each in before.items():
            if lacks and slot >= 0 and each.lives and each.owner != self._owner:
                name = relay_name(each.owner)
                others[name] = max(others.get(name, 0.0), round(each.left_us / _MICROSECONDS, 1))
        log.info(
            "relay_buckets",
            extra={
                "destination": self._destination,
                "buckets": len(after),
                "relays": relays,
                "others": others or None,
                "hint": _HINT if lacks else None,
            },
        )

    def _renew(self) -> None:
        # A relay without a live lease has no buckets, but it is still there.
        self._store.change(
            "UPDATE {leases} SET lease_until = {now} + ?"
            " WHERE destination = ? AND owner = ? AND (slot < 0 OR lease_until >= {now})",
            *(self._lease_us, self._destination, self._owner),
        )

    def _renew_or_tell(self) -> None:
        try:
            self._renew()
        except Exception as error:  # the next round tries again
            more = self._told.take()
            if more is not None:
                log.warning("relay_renewal_failed", extra={"error": str(error), "more": more})

    def _insert(self, slot: int, owner: bytes, lease_us: int) -> None:
        """Make a row, unless another relay has just made it."""
        try:
            self._store.change(
                "INSERT INTO {leases} (destination, slot, owner, lease_us, lease_until) VALUES (?, ?, ?, ?, {now} + ?)",
                *(self._destination, slot, owner, lease_us, lease_us),
            )
        except Exception as error:
            cause = error.__cause__
            if cause is None or fault_of(cause, self._store.connections.engine) is not Fault.REFUSED:
                raise


def share_of(relays: int) -> int:
    """The most buckets that one of so many relays has."""
    return -(-BUCKETS // relays)


def relay_name(owner: bytes) -> str:
    """How the log names a relay."""
    return owner[:_NAME_BYTES].hex()
