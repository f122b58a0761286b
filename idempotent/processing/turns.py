"""Turns: messages that may have killed processes run one at a time, so that a death is charged to one of them."""

from __future__ import annotations

import threading
import time
from typing import Final

from idempotent.forks import free_in_child, in_child
from idempotent.keys import Key
from idempotent.logs import EventLog
from idempotent.observe.log_lines import about_key

log = EventLog(__name__)

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
        self._key: Key | None = None
        self._since = 0.0
        self._said = False

    def take(self, owner: bytes, key: Key) -> bool:
        """Take the turn for a run; False: another one has it. That one is named in the log once it has it for long."""
        with self._lock:
            if self._owner is None:
                self._owner, self._key, self._since, self._said = owner, key, time.monotonic(), False
                return True
            for_s = time.monotonic() - self._since
            says = for_s >= _LONG_S and not self._said
            self._said = self._said or says
            holder = self._key
        if says and holder is not None:
            log.warning("turn_is_long", extra={**about_key(holder), "for_s": round(for_s, 1)})
        return False

    def end(self, owner: bytes) -> None:
        """Give the turn back, if this run has it."""
        with self._lock:
            if self._owner == owner:
                self._owner = self._key = None


turns: Final = Turns()
in_child(turns.begin)
