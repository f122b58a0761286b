"""One run of a handler: how long it takes, whether it fails, and its effect."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from idempotent.consumer import current_claim
from idempotent.message import Message, Position
from idempotent.testing.crashpoints import reach
from tests.torture.journal import Journal, What
from tests.torture.settings import SLOW
from tests.torture.traffic import Behaviour, headers_of, is_sent, known_as

_FAILS: Final = 0.6
_LONGEST_MOMENT_S: Final = 0.004
_LONGEST_SLOW_S: Final = 0.08


class FlakyError(Exception):
    """A temporary failure."""


class PoisonError(Exception):
    """A permanent failure."""


def _fails(behaviour: Behaviour) -> bool:
    if behaviour in (Behaviour.FLAKY, Behaviour.UNDONE):
        return random.random() < _FAILS
    return behaviour is Behaviour.POISON


def takes_s(behaviour: Behaviour, lease_s: float, *, slowly: bool) -> float:
    """Seconds that a handler takes, so that faults of the process hit it."""
    moment_s = random.random() * (_LONGEST_SLOW_S if slowly else _LONGEST_MOMENT_S)
    return lease_s * SLOW if behaviour is Behaviour.SLOW else moment_s


def behaviour_in(message: Message) -> Behaviour:
    """What a message makes its handler do, as its body says."""
    return Behaviour(message.json()["behaviour"])


def check_headers(message: Message, journal: Journal, *, has_bytes: bool) -> None:
    """Write down each header that is not as it was sent."""
    for name, value in headers_of(message.json()["number"], has_bytes=has_bytes).items():
        if message.headers.get(name) != value:
            found = message.headers.get(name)
            journal.write(What.WRONG, id=known_as(message), error=f"the header {name} is {found!r}")


class HandlerRun:
    """One run of a handler.

    Attributes:
        behaviour: what the message makes its handler do.
        takes_s: seconds that it takes before its effect.
    """

    def __init__(
        self, journal: Journal, process: str, message: Message, attempt: int, takes_s: float, *, undone: bool
    ) -> None:
        self.behaviour: Final = behaviour_in(message)
        self.takes_s: Final = takes_s
        self._journal = journal
        self._process = process
        self._id = known_as(message)
        # What handlers sent is judged by its order key, and not by where it is.
        has_place = not is_sent(self._id) and isinstance(message.position, Position)
        self._position = str(message.position) if has_place else ""
        self._attempt = attempt
        self._fails = _fails(self.behaviour)
        self._undone = undone

    @contextmanager
    def effect(self) -> Iterator[dict[str, Any]]:
        """What to write in the block, which is the crash point "effect". A message may make its handler fail before."""
        if self._fails:
            self._journal.write(What.RAISED, id=self._id, position=self._position)
        if self._fails and not self._undone:
            raise (
                PoisonError("always")
                if self.behaviour is Behaviour.POISON
                else FlakyError("before the effect")
            )
        reach("before_effect")
        yield {
            "id": self._id,
            "position": self._position,
            "process": self._process,
            "attempt": self._attempt,
            "fence": current_claim().fence,
        }
        reach("after_effect")

    def end(self) -> str:
        """What the handler returns. A message may make it fail after its effect."""
        if self._fails:
            raise FlakyError("after the effect")
        return self._id


def timed(effect: dict[str, Any]) -> dict[str, Any]:
    """The effect with the time, on both clocks."""
    return effect | {"at": time.monotonic(), "wall": time.time()}
