"""ExpiredKeys: a worker's thread that deletes expired keys from time to time."""

from __future__ import annotations

import random
import threading
from collections.abc import Collection
from typing import Final

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.logs import EventLog

log = EventLog(__name__)

_FIRST_AFTER_S: Final = 60.0
_JITTER: Final = 0.1
_LAST_WAIT_S: Final = 1.0


class ExpiredKeys:
    """A context manager: inside, every checker deletes its expired keys, one process at a time.

    Args:
        checkers: the checkers whose keys are deleted.
        interval_s: seconds from one round to the next, give or take a tenth; the first comes within a minute.
            None: never.
    """

    def __init__(self, checkers: Collection[AbstractIdempotentChecker], interval_s: float | None) -> None:
        """Start nothing yet."""
        self._checkers = tuple(checkers)
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="idempotent-gc", daemon=True)

    def __enter__(self) -> None:
        if self._interval_s is not None:
            self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            # Its batches are short. If one takes longer, the lock in the store ends with its lease.
            self._thread.join(_LAST_WAIT_S)

    def _run(self) -> None:
        assert self._interval_s is not None
        # Workers that start together must not query the store together.
        wait_s = min(_FIRST_AFTER_S, self._interval_s) * random.uniform(0.5, 1.0)
        while not self._stopped.wait(wait_s):
            for checker in self._checkers:
                self._delete(checker)
            wait_s = self._interval_s * random.uniform(1 - _JITTER, 1 + _JITTER)

    def _delete(self, checker: AbstractIdempotentChecker) -> None:
        try:
            deleted = checker.garbage_collect_alone()
        except Exception as error:
            # Expired keys only take disk space: messages continue, and the next round tries again.
            log.warning("gc_failed", extra={"checker": type(checker).__name__, "error": str(error)})
            return
        if deleted is not None:
            log.info("gc_done", extra={"checker": type(checker).__name__, "deleted": deleted})
