"""DerivedIds: the ids of what leased handlers send, which are the same when a handler runs again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import count
from threading import Lock
from typing import Final

from idempotent.claims import Claim
from idempotent.errors import ConfigurationError
from idempotent.forks import free_in_child
from idempotent.message import Message
from idempotent.outbox.entries import Entry, derived_id

# A claim is forgotten when so many younger ones have sent something.
_MOST_CLAIMS: Final = 100_000


class DerivedIds:
    """Gives ids, and tells apart the equal messages that one run of a handler sends. Thread-safe."""

    def __init__(self) -> None:
        # For each claim the numbers of the copies that are sent, by the id of the first one.
        self._taken: OrderedDict[bytes, dict[str, set[int]]] = OrderedDict()
        self._lock = free_in_child(Lock())

    def give(self, claim: Claim, message: Message, entry: Entry, dedup: str | None) -> None:
        """Give an entry its id: that of the first copy which no open or committed transaction has.

        So a copy that was rolled back and is sent again has the id of a run in which it was not.

        Args:
            claim: of the handler.
            message: what it sends.
            entry: the same, without an id.
            dedup: the name that the handler gave it.

        Raises:
            ConfigurationError: the handler has used that name before.
        """
        entry.owner = claim.owner
        entry.first_id = derived_id(claim, message, entry.destination, entry.order_key, dedup, 0)
        with self._lock:
            copies = self._taken.setdefault(claim.owner, {}).setdefault(entry.first_id, set())
            self._taken.move_to_end(claim.owner)
            if dedup is not None and copies:
                raise ConfigurationError(
                    f"the handler has sent another message with dedup={dedup!r}: give each its own name"
                )
            entry.copy = next(number for number in count() if number not in copies)
            copies.add(entry.copy)
            while len(self._taken) > _MOST_CLAIMS:
                self._taken.popitem(last=False)
        entry.message_id = derived_id(claim, message, entry.destination, entry.order_key, dedup, entry.copy)

    def release(self, entries: Iterable[Entry]) -> None:
        """Forget what was rolled back."""
        with self._lock:
            for entry in entries:
                if entry.first_id:
                    self._taken.get(entry.owner, {}).get(entry.first_id, set()).discard(entry.copy)


ids: Final = DerivedIds()
"""Those of all outboxes of the process: a handler may use several for one table."""
