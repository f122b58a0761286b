"""Upkeep: what a line does once a second beside publishing."""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet
from typing import Final

from idempotent.logs import EventLog
from idempotent.outbox.relays.holds import Holds
from idempotent.outbox.relays.publishing import Publishing
from idempotent.outbox.store import OutboxStore

log = EventLog(__name__)

_EVERY_S: Final = 1.0
_FREE_S: Final = 60.0
_MOST_MOVES: Final = 20


class Upkeep:
    """Releases delayed messages, tries held ones again, and keeps the connection to the broker alive.

    Args:
        store: the outbox.
        destination: the name of the broker.
        publishing: publishes.
        holds: the held lanes.
        batch_size: the most delayed messages that are moved together.
    """

    def __init__(
        self, store: OutboxStore, destination: str, publishing: Publishing, holds: Holds, batch_size: int
    ) -> None:
        self._store = store
        self._destination: Final = destination
        self._publishing = publishing
        self._holds = holds
        self._batch_size = batch_size
        self._next = self._next_free = 0.0

    def work(self, buckets: AbstractSet[int]) -> Exception | None:
        """Do what is due. Returns why the broker did not answer, if it did not.

        Raises:
            StoreError: the database failed.
        """
        now = time.monotonic()
        if now < self._next:
            return None
        lost = self._publishing.keep_alive()
        for _ in range(_MOST_MOVES):
            if self._store.move_due(buckets, self._destination, self._batch_size) < self._batch_size:
                break
        if now >= self._next_free:
            self._next_free = now + _FREE_S
            freed = self._store.free_unheld(buckets, self._destination)
            if freed:
                log.warning("outbox_messages_freed", extra={"messages": freed})
        unfenced = self._publishing.fence(buckets)
        failed = self._holds.retry(buckets)
        self._next = now + _EVERY_S
        return lost or unfenced or failed
