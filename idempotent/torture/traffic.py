"""The messages of a run, what each makes its handler do, and the order of sending."""

from __future__ import annotations

import heapq
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final

from idempotent.message import Message
from idempotent.torture.settings import Settings

_LARGEST_BATCH: Final = 20
_LATEST_COPY: Final = 400


class Behaviour(Enum):
    """What a message makes its handler do."""

    PLAIN = "plain"
    SLOW = "slow"
    """The handler takes longer than a lease, which must be renewed meanwhile."""
    FLAKY = "flaky"
    """The handler sometimes fails before the effect."""
    UNDONE = "undone"
    """The handler sometimes fails after the effect, if the checker rolls it back."""
    POISON = "poison"
    """The handler always fails, so the message ends as a dead letter."""


_SHARES: Final = {
    Behaviour.SLOW: 0.0015,
    Behaviour.FLAKY: 0.01,
    Behaviour.UNDONE: 0.01,
    Behaviour.POISON: 0.0025,
}


def id_of(number: int) -> str:
    """The id of a message."""
    return f"m-{number}"


def behaviour_of(seed: int, number: int) -> Behaviour:
    """What a message makes its handler do; the same for the same seed."""
    place = random.Random(f"behaviour {seed} {number}").random()
    for behaviour, share in _SHARES.items():
        place -= share
        if place < 0:
            return behaviour
    return Behaviour.PLAIN


def message_of(subject: str, seed: int, number: int) -> Message:
    """The message with this number."""
    body = json.dumps({"number": number, "behaviour": behaviour_of(seed, number).value})
    return Message(subject, body.encode(), id=id_of(number))


class Traffic:
    """Batches of messages for a `Producer`, until `finish`.

    Args:
        resends: whether messages are sent twice on purpose.
        unfinished: returns how many messages are sent and not processed.

    Attributes:
        begun: messages 0 to this number may be on the broker.
        confirmed: messages 0 to this number are on the broker.
        duplicates: messages sent twice on purpose.
    """

    def __init__(
        self, subject: str, settings: Settings, *, resends: bool, unfinished: Callable[[], int]
    ) -> None:
        self.begun = 0
        self.confirmed = 0
        self.duplicates = 0
        self._subject = subject
        self._settings = settings
        self._share = settings.duplicates if resends else 0.0
        self._unfinished = unfinished
        self._finishing = threading.Event()
        self._chance = random.Random(f"producer {settings.seed}")
        self._copies: list[tuple[int, int]] = []

    def finish(self) -> None:
        """Begin no new message; send the copies that are due."""
        self._finishing.set()

    def __iter__(self) -> Iterator[list[Message]]:
        """The producer asks for the next batch when the one before is confirmed."""
        while batch := self._next():
            yield batch
            self.confirmed = self.begun

    def _next(self) -> list[Message]:
        while not self._finishing.is_set() and self._unfinished() >= self._settings.backlog:
            time.sleep(0.02)
        numbers = []
        if not self._finishing.is_set():
            size = self._chance.randint(1, _LARGEST_BATCH)
            time.sleep(size / self._settings.rate_per_s)
            numbers = list(range(self.begun, self.begun + size))
            self.begun += size
            for number in numbers:
                if self._chance.random() < self._share:
                    heapq.heappush(self._copies, (number + self._chance.randint(0, _LATEST_COPY), number))
                elif self._share and behaviour_of(self._settings.seed, number) is not Behaviour.PLAIN:
                    # At once, so that another consumer claims the key of a message that is slow or fails.
                    heapq.heappush(self._copies, (number, number))
        while self._copies and (self._finishing.is_set() or self._copies[0][0] < self.begun):
            numbers.append(heapq.heappop(self._copies)[1])
            self.duplicates += 1
        return [message_of(self._subject, self._settings.seed, number) for number in numbers]
