"""Turns: messages that may have killed processes run one at a time, so that a death is charged to one of them."""

from __future__ import annotations

import threading
import time
from typing import Final

from idempotent.forks import free_in_child, in_child
from idempotent.message import Message
from idempotent.processing.binding import Binding

SUSPECT_DEATHS: Final = 2
"""After so many deaths in a row a message takes turns with other such messages (docs/decisions/0041)."""
RETRY_S: Final = 1.0
"""Seconds after which a message that waits for its turn asks again, at the latest."""
_LONG_S: Final = 60.0


class Turns:
    """The turn of this process: one message has it, others that need it wait outside, and all else runs beside it."""

    def __init__(self) -> None:
        self._lock: Final = free_in_child(threading.Lock())
        self.begin()

    def begin(self) -> None:
        """Let nobody have the turn: a child runs nothing of what its parent does."""
        self._owner: bytes | None = None
        self._holder: tuple[Binding, Message] | None = None
        self._since = 0.0
        self._said = False

    def take(self, owner: bytes, binding: Binding, message: Message) -> bool:
        """Take the turn for a run of a message; False: another one has it."""
        with self._lock:
            if self._owner is None:
                self._owner, self._holder = owner, (binding, message)
                self._since, self._said = time.monotonic(), False
                return True
            return False

    def end(self, owner: bytes) -> None:
        """Give the turn back, if this run has it."""
        with self._lock:
            if self._owner == owner:
                self._owner = self._holder = None

    def long_one(self) -> tuple[Binding, Message, float] | None:
        """The message that has had the turn for more than a minute, and for how many seconds; once for each turn."""
        with self._lock:
            for_s = time.monotonic() - self._since
            if self._holder is None or self._said or for_s < _LONG_S:
                return None
            self._said = True
            return *self._holder, for_s


turns: Final = Turns()
in_child(turns.begin)
