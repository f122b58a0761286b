"""What many lines of the log have in common: the fields that name a message or a key, and LogThrottle.

docs/reference/logging.md lists the fields.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from idempotent.forks import free_in_child
from idempotent.keys import NO_KEY, Key
from idempotent.message import Message

_EVERY_S: Final = 60.0


def about_key(key: Key) -> dict[str, object]:
    """`consumer` and `key`, for a line that knows no message."""
    if key is NO_KEY:
        return {"consumer": None, "key": None}
    return {"consumer": key.consumer, "key": str(key)}


def about_message(message: Message) -> dict[str, object]:
    """`message_id` and `position`, for a line that knows no consumer."""
    position = None if message.position is None else str(message.position)
    return {"message_id": message.id, "position": position}


class LogThrottle:
    """Lets one kind of event, which can happen a thousand times a second, through once a minute. Thread-safe.

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
