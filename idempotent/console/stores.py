"""One store in the console: its keys are counted in the background, with the outbox beside them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from idempotent.admin import KeyStats, Pause
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.pauses import pauses_of
from idempotent.checkers.sql import SqlChecker
from idempotent.checkers.sql.transactional import TransactionalBase
from idempotent.errors import SchemaError, StoreError, described
from idempotent.forks import free_in_child
from idempotent.observe import OutboxStats
from idempotent.outbox.admin import OutboxAdmin
from idempotent.outbox.outbox import Outbox
from idempotent.values import value

_FRESH_S: Final = 4.0
# Counting reads all keys: a large store is busy with it for a twentieth of the time, unless the count would be old.
_SHARE: Final = 20
_LONGEST_S: Final = 60.0


@value
class Counted:
    """What a store had when it was last counted.

    Attributes:
        keys: by consumer and state.
        outbox: what waits; None: the store has no outbox.
        error: why it could not be counted; "": it was.
        at: when, on the clock of `time.monotonic`.
        took_s: how long that took.
    """

    keys: Sequence[KeyStats] = ()
    outbox: OutboxStats | None = None
    error: str = ""
    at: float = 0.0
    took_s: float = 0.0

    @property
    def age_s(self) -> int:
        """Seconds since it was counted."""
        return int(time.monotonic() - self.at)

    @property
    def lasts_s(self) -> float:
        """How long it is shown before the store is counted again."""
        return max(_FRESH_S, min(_SHARE * self.took_s, _LONGEST_S))


class ConsoleStore:
    """The keys of a checker, and the outbox in the same database.

    Args:
        checker: reaches the store; its owner closes it.

    Attributes:
        name: how the console calls the store, without a password.
    """

    def __init__(self, checker: AbstractIdempotentChecker) -> None:
        self.checker: Final = checker
        self.name: Final = checker.store_name
        self.admin: Final = checker.admin()
        self._outbox: Outbox | None = None
        if isinstance(checker, (SqlChecker, TransactionalBase)):
            store = checker.store
            self._outbox = Outbox(store.engine, table=store.table, schema=store.schema)
        self.outbox: Final = None if self._outbox is None else OutboxAdmin(self._outbox)
        self._lock = free_in_child(threading.Lock())
        self._counting: threading.Thread | None = None
        self._counted: Counted | None = None

    def is_of(self, checker: AbstractIdempotentChecker) -> bool:
        """Whether the keys of another checker are in the same place."""
        # A checker of a user's own that does not name its store has one for itself.
        is_named = checker.store_name != type(checker).__name__
        return checker is self.checker or (is_named and checker.store_name == self.name)

    def counted(self, wait_s: float = 2.0) -> Counted | None:
        """What was counted last, and begin to count again if that is old; None: the first count is still under way.

        Args:
            wait_s: how long to wait for the first count.
        """
        with self._lock:
            last = self._counted
            fresh = last is not None and last.age_s < last.lasts_s
            if not fresh and self._counting is None:
                self._counting = threading.Thread(
                    target=self._count, name="idempotent-console-count", daemon=True
                )
                self._counting.start()
            counting = self._counting
        if last is None and counting is not None:
            counting.join(wait_s)
        return self._counted

    def pauses(self, consumers: Iterable[str]) -> Mapping[str, Pause]:
        """Those of these consumers that are paused now; none while the store does not answer, which the count says."""
        if self._counted is not None and self._counted.error:
            return {}
        try:
            return pauses_of(self.checker, consumers)
        except StoreError:
            return {}

    def close(self) -> None:
        """Close the connections for the outbox."""
        if self._outbox is not None:
            self._outbox.close()

    def _count(self) -> None:
        began, outbox, error = time.monotonic(), None, ""
        keys: Sequence[KeyStats] = ()
        try:
            keys = self.admin.stats()
            if self.outbox is not None:
                try:
                    outbox = self.outbox.stats()
                except SchemaError:
                    outbox = None
        except Exception as failure:
            error = described(failure)
        at = time.monotonic()
        with self._lock:
            self._counted = Counted(keys, outbox, error, at, at - began)
            self._counting = None
