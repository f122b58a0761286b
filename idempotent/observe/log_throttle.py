"""LogThrottle: lets a log line through once a minute, with the number of those it kept back."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from idempotent.forks import free_in_child

_EVERY_S: Final = 60.0


class LogThrottle:
    """Decides about one kind of event that can happen a thousand times a second. Thread-safe.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = free_in_child(threading.Lock())
        self._last = -math.inf
        self._kept_back = 0

    def take(self) -> int | None:
        """How many events were kept back since the last one that was let through; None: keep this one back too."""
        with self._lock:
            now = self._clock()
            if now - self._last < _EVERY_S:
                self._kept_back += 1
                return None
            self._last, kept_back, self._kept_back = now, self._kept_back, 0
            return kept_back
