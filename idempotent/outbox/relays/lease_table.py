"""LeaseTable: which relay has which bucket of a broker's messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from idempotent.outbox.sql import Statements
from idempotent.outbox.store import OutboxStore
from idempotent.stores.sql.connections import Connections
from idempotent.stores.sql.cursor import execute, query
from idempotent.stores.sql.faults import Fault, fault_of

# As `Statements.slots` says it.
_LEFT_BEHIND: Final = 2


class LeaseTable:
    """The leases of the buckets of one destination, by the clock of the database.

    Args:
        store: the outbox.
        destination: the name of the broker.
    """

    def __init__(self, store: OutboxStore, destination: str) -> None:
        self._store = store
        self._destination: Final = destination

    @property
    def _connections(self) -> Connections:
        return self._store.connections

    @property
    def _sql(self) -> Statements:
        return self._store.sql

    def announce(self, slot: int, owner: bytes, lease_us: int) -> bool:
        """Show other relays this one. False: it is there already."""
        try:
            self._connections.run(execute, self._sql.announce, (self._destination, slot, owner, lease_us))
        except Exception as error:
            cause = error.__cause__
            if cause is not None and fault_of(cause, self._connections.engine) is Fault.REFUSED:
                return False
            raise
        return True

    def is_announced(self, slot: int, owner: bytes) -> bool:
        """Whether the row of this relay is still there: another relay may have taken it for dead."""
        return bool(self._connections.run(query, self._sql.is_announced, (self._destination, slot, owner)))

    def relays(self) -> int:
        """How many relays have shown themselves within their lease."""
        return int(self._connections.run(query, self._sql.relays, (self._destination,))[0][0])

    def renew(self, owner: bytes, lease_us: int) -> None:
        """Renew the leases of a relay that have not ended."""
        self._connections.run(execute, self._sql.renew, (lease_us, self._destination, owner))

    def free(self) -> dict[int, bool]:
        """The buckets that no relay has, and those without a row yet; True: its relay has not given it back."""
        rows: dict[int, int] = dict(self._connections.run(query, self._sql.slots, (self._destination,)))
        for slot in range(len(self._sql.buckets)):
            if slot not in rows:
                self.announce(slot, b"\0" * 16, 0)
                rows[slot] = 1
        return {slot: rows[slot] == _LEFT_BEHIND for slot in self._sql.buckets if rows[slot]}

    def take(self, slots: Sequence[int], owner: bytes, lease_us: int) -> None:
        """Take these buckets if no relay has them."""
        self._connections.run(execute, self._sql.take(slots), (owner, lease_us, self._destination))

    def taken(self, owner: bytes) -> set[int]:
        """The buckets of a relay whose lease has not ended."""
        return {row[0] for row in self._connections.run(query, self._sql.taken, (self._destination, owner))}

    def leave(self, owner: bytes, slots: Sequence[int]) -> None:
        """Give buckets back."""
        if slots:
            self._connections.run(execute, self._sql.leave(slots), (self._destination, owner))

    def depart(self, owner: bytes) -> None:
        """Give all buckets back, and show this relay no longer. Relays whose lease has ended are forgotten too."""
        self._connections.run(execute, self._sql.leave_all, (self._destination, owner))
        self._connections.run(execute, self._sql.forget_relays, (self._destination, owner))
