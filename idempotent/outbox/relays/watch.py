"""Watch: shows whether a relay publishes, to probes and in the log, also while a server does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from idempotent.checkers.rounds import Rounds
from idempotent.outbox.relays.line import Line
from idempotent.outbox.relays.publishing import Doing
from idempotent.worker.health_file import CONNECTING, READY, STORE, HealthFile

_LOOK_S: Final = 1.0
# One question to a server that takes longer is told, and counts as no answer.
_LONG_S: Final = 10.0
# A relay that waits longer for one answer is stuck: its health file gets old.
_STUCK_S: Final = 300.0
_WORDS: Final = {Doing.STORE: STORE, Doing.BROKER: CONNECTING}


class Watch:
    """Looks at the lines of a relay once a second, in a thread of its own that asks no server.

    Args:
        lines: the lines.
        health: the file for probes; None: none.
    """

    def __init__(self, lines: Sequence[Line], health: HealthFile | None) -> None:
        self._lines = lines
        self._health = health
        self._rounds: Rounds | None = None
        self._lock = threading.Lock()  # a look that is under way must not make the file again
        self._ended = False

    def start(self) -> None:
        """Begin."""
        self._ended = False
        self._look()
        self._rounds = Rounds(self._look, "idempotent-relay-watch", _LOOK_S)

    def stop(self) -> None:
        """End, and remove the health file."""
        if self._rounds is not None:
            self._rounds.stop()
        with self._lock:
            self._ended = True
            if self._health is not None:
                self._health.remove()

    def _look(self) -> bool:
        words = [self._word(line) for line in self._lines]
        with self._lock:
            if self._health is not None and None not in words and not self._ended:
                self._health.beat(next(word for word in (STORE, CONNECTING, READY) if word in words))
        return not self._ended

    def _word(self, line: Line) -> str | None:
        """How a line is; None: it is stuck."""
        doing, since = line.activity.now
        waited_s = time.monotonic() - since
        if doing is Doing.WAITS or waited_s < _LONG_S:
            return line.word
        line.tell_hang(doing, waited_s)
        return _WORDS[doing] if waited_s < _STUCK_S else None
