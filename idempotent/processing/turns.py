"""Turns: messages that may have killed processes run one at a time, so that a death is charged to one of them."""

from __future__ import annotations

import threading
import time
from typing import Final
from weakref import ref

from idempotent.forks import free_in_child, in_child
from idempotent.message import Message
from idempotent.processing.binding import Binding

SUSPECT_DEATHS: Final = 2
"""After so many deaths in a row a message takes turns with other such messages (docs/decisions/0041)."""
RETRY_S: Final = 1.0
"""Seconds after which a message that waits for its turn asks again, at the latest."""
_LONG_S: Final = 60.0


class Turn:
    """The turn of one run. It ends with `end`, or when its last reference is gone.

    Args:
        binding: the consumer, bound to its checker.
        message: the message.
    """

    __slots__ = ("__weakref__", "binding", "is_over", "message", "said", "since")

    def __init__(self, binding: Binding, message: Message) -> None:
        self.binding: Final = binding
        self.message: Final = message
        self.since: Final = time.monotonic()
        self.is_over = False
        self.said = False

    def end(self) -> None:
        """Let the next one have a turn."""
        self.is_over = True


class Turns:
    """The turn of this process: one message has it, others that need it wait outside, and all else runs beside it."""

    def __init__(self) -> None:
        self._lock: Final = free_in_child(threading.Lock())
        self.begin()

    def begin(self) -> None:
        """Let nobody have the turn: a child runs nothing of what its parent does."""
        # Not kept here: an exception of a signal handler may come before it is given back.
        self._turn: ref[Turn] | None = None

    @property
    def taken(self) -> Turn | None:
        """The turn that is not over; None: no run has the turn."""
        turn = None if self._turn is None else self._turn()
        return None if turn is None or turn.is_over else turn

    def take(self, binding: Binding, message: Message) -> Turn | None:
        """Take the turn for a run of a message; None: another one has it."""
        with self._lock:
            if self.taken is not None:
                return None
            turn = Turn(binding, message)
            self._turn = ref(turn)
            return turn

    def long_one(self) -> tuple[Binding, Message, float] | None:
        """The message that has had the turn for more than a minute, and for how many seconds; once for each turn."""
        with self._lock:
            turn = self.taken
            if turn is None or turn.said or time.monotonic() - turn.since < _LONG_S:
                return None
            turn.said = True
            return turn.binding, turn.message, time.monotonic() - turn.since


turns: Final = Turns()
in_child(turns.begin)
