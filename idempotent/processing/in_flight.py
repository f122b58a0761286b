"""InFlight: what this process runs now, so that a message which may have killed one can run alone."""

from __future__ import annotations

import math
import threading
import time
from typing import Final

from idempotent.forks import free_in_child, in_child
from idempotent.message import Message
from idempotent.processing.calling import inside_handler
from idempotent.processing.steps import SLEEP, Life

# How long a message waits before it looks again whether it may begin, at first and later.
_LOOK_S: Final = 0.01
_LONGEST_LOOK_S: Final = 0.25
# How long one that must run alone waits for handlers that take longer, and how long others then wait for it. A handler
# may take hours, or wait for another message of this process.
_LONGEST_WAIT_S: Final = 60.0


class InFlight:
    """The messages and groups that this process runs now.

    A process that dies takes all of them along, and only one can have been the cause. So whatever is delivered again
    after a death runs while nothing else does: then a death tells which message it was.

    A run begins when it puts itself into `running`, and, if `alone` is not None, has awaited `beside`. It looks after
    it has put itself there, as the other one looks after it has set `alone`: neither misses the other. Changing a
    dict's entry is atomic in CPython, so no message takes a lock.

    Attributes:
        running: the runs. Those that wait are not among them.
        alone: the one that runs alone, or waits until it can.
    """

    __slots__ = ("_lock", "_long", "_since", "_suspect", "_until", "alone", "running")

    def __init__(self) -> None:
        self._lock: Final = free_in_child(threading.Lock())
        self.running: Final[dict[bytes, None]] = {}
        self.begin()

    def begin(self) -> None:
        """Forget all: a child runs nothing of what its parent does."""
        self.running.clear()
        self.alone: bytes | None = None
        self._suspect: Message | None = None
        self._since = 0.0
        self._until = 0.0
        # Those that have been waited for once: the next one that is to be alone runs beside them.
        self._long: set[bytes] = set()

    def beside(self, run: bytes) -> Life[None]:
        """Wait until a run may go on that has begun while another was to be alone.

        What a handler itself gives to a consumer belongs to its own run, which waits for it.
        """
        wait_s = _LOOK_S
        while self._keeps_others() and not inside_handler():
            del self.running[run]
            yield SLEEP, time.sleep, (wait_s,)
            wait_s = min(wait_s * 2, _LONGEST_LOOK_S)
            self.running[run] = None

    def by_itself(self, run: bytes, message: Message) -> Life[None]:
        """Begin the run of a message that is to be alone, when nothing else runs. Meanwhile nothing else begins."""
        wait_s = _LOOK_S
        while not self._begins_alone(run, message):
            yield SLEEP, time.sleep, (wait_s,)
            wait_s = min(wait_s * 2, _LONGEST_LOOK_S)
        self.running[run] = None

    def _begins_alone(self, run: bytes, message: Message) -> bool:
        if inside_handler():
            return True
        with self._lock:
            now = time.monotonic()
            if not self._keeps_others():
                self._long.update(filter(None, [self.alone]))
                self._since, self._until, self._suspect, self.alone = now, math.inf, message, run
            if self.alone != run:
                return False
            if now - self._since >= _LONGEST_WAIT_S:
                self._long.update(self.running)
            self._long = {other for other in self._long if other in self.running}
            return len(self.running) == len(self._long)

    def share(self, message: Message) -> None:
        """Let others begin beside the message that runs alone, when it has run for a minute."""
        if self._suspect is message:
            # Not later than before: a transaction that is repeated begins its handler again.
            self._until = min(self._until, time.monotonic() + _LONGEST_WAIT_S)

    def _keeps_others(self) -> bool:
        return self.alone is not None and time.monotonic() < self._until

    def end_alone(self, run: bytes) -> None:
        """Let others begin again."""
        if self.alone == run:
            self._suspect = self.alone = None

    def blocked_s(self, message: Message) -> float | None:
        """For how many seconds nothing else has begun because this message is to run alone; None: others may begin."""
        now = time.monotonic()
        return now - self._since if self._suspect is message and now < self._until else None


in_flight: Final = InFlight()
in_child(in_flight.begin)
