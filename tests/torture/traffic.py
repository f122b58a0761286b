"""The messages of a run, what each makes its handler do, and the order of sending."""

from __future__ import annotations

import heapq
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final

from examples.demo.stage.places import Place
from idempotent.message import Message
from tests.torture.settings import GROUP, Settings

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
    UNSENT = "unsent"
    """The handler leaves its row pending in the Session."""
    FORGETFUL = "forgetful"
    """The handler first discards all objects of the Session, which others of its group may have left there."""


_SHARES: Final = {
    Behaviour.SLOW: 0.0015,
    Behaviour.FLAKY: 0.01,
    Behaviour.UNDONE: 0.01,
    Behaviour.POISON: 0.0025,
    Behaviour.UNSENT: 0.2,
    Behaviour.FORGETFUL: 0.1,
}
# Another consumer should claim the key of a message that is slow or fails.
_SENT_TWICE: Final = frozenset({Behaviour.SLOW, Behaviour.FLAKY, Behaviour.UNDONE, Behaviour.POISON})
_SLOW_SUBJECT: Final = "_slow"
_SENT: Final = "-sent"
_SENT_SUBJECT: Final = "_sent"
_IN_SLOW_SUBJECT: Final = 40
_FOREIGN: Final[Sequence[Mapping[str, str | bytes]]] = (
    {},
    {"lang": "py", "task": "shop.pay", "retries": "0", "origin": "gen1@host", "argsrepr": "('Zoë',)"},
    {"ce-id": "A234-1234", "ce-specversion": "1.0", "ce-type": "paid", "ce-source": "/shop?a=b&c=d:e"},
    {
        "_type": "com.example.Order",
        "spring_json_header_types": '{"a":"b"}',
        "content_type": "application/json",
    },
)
"""Headers as Celery, CloudEvents and Spring write them."""
_BYTES: Final = {"b3": b"\x80\xff\x00\xfe"}
"""A header that is not text, as tracing systems write it."""


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


def subjects_of(name: str, *, outbox: bool = False) -> Sequence[str]:
    """The subjects of a run: that of most messages, and others beside it in each process.

    The handler of the second is slow. With an outbox handlers send to the third.
    """
    both = name, name + _SLOW_SUBJECT
    return (*both, sent_subject(name)) if outbox else both


def sent_subject(name: str) -> str:
    """The subject of what the handlers of the other subjects send through an outbox."""
    return name + _SENT_SUBJECT


def group_of(subject: str) -> str:
    """The group that consumes a subject."""
    return GROUP + _SENT_SUBJECT if subject.endswith(_SENT_SUBJECT) else GROUP


def sent_id(known_as: str) -> str:
    """How the message is known that the handler of another one sends: in the ledger, and in journals."""
    return known_as + _SENT


def is_sent(known_as: str) -> bool:
    """Whether it is known as one that a handler has sent."""
    return known_as.endswith(_SENT)


def known_as(message: Message) -> str:
    """How a message is known: by its id, or as `sent_id`, because an outbox gives it an id of its own."""
    if message.subject.endswith(_SENT_SUBJECT):
        name: str = message.json()["id"]
        return name
    return str(message.id)


def is_slow(subject: str) -> bool:
    """Whether the handler of this subject is slow."""
    return subject.endswith(_SLOW_SUBJECT)


def headers_of(number: int, *, has_bytes: bool) -> Mapping[str, str | bytes]:
    """The headers of a message, as other clients write them; `has_bytes`: also those that are no text."""
    kinds = (*_FOREIGN, _BYTES) if has_bytes else _FOREIGN
    return kinds[number % len(kinds)]


def message_of(name: str, seed: int, number: int, *, has_bytes: bool) -> Message:
    """The message with this number; `has_bytes` as for its headers."""
    body = json.dumps({"number": number, "behaviour": behaviour_of(seed, number).value})
    subject = subjects_of(name)[number % _IN_SLOW_SUBJECT == _IN_SLOW_SUBJECT - 1]
    return Message(subject, body.encode(), id=id_of(number), headers=headers_of(number, has_bytes=has_bytes))


class Traffic:
    """Batches of messages for a `Producer`, until `finish`.

    Args:
        place: where most of them go.
        resends: whether messages are sent twice on purpose.
        unfinished: returns how many messages are sent and not processed.

    Attributes:
        begun: messages 0 to this number may be on the broker.
        confirmed: messages 0 to this number are on the broker.
        duplicates: messages sent twice on purpose.
    """

    def __init__(
        self, place: Place, settings: Settings, *, resends: bool, unfinished: Callable[[], int]
    ) -> None:
        self.begun = 0
        self.confirmed = 0
        self.duplicates = 0
        self._place = place
        self._settings = settings
        self._share = settings.duplicates if resends else 0.0
        self._unfinished = unfinished
        self._finishing = threading.Event()
        self._chance = random.Random(f"producer {settings.seed}")
        self._copies: list[tuple[int, int]] = []

    @property
    def sent_by_handlers(self) -> int:
        """How many messages handlers send for those that were begun: one each, unless it is poison."""
        if not self._settings.outbox:
            return 0
        behaviours = (behaviour_of(self._settings.seed, number) for number in range(self.begun))
        return sum(behaviour is not Behaviour.POISON for behaviour in behaviours)

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
                elif self._share and behaviour_of(self._settings.seed, number) in _SENT_TWICE:
                    heapq.heappush(self._copies, (number, number))
        while self._copies and (self._finishing.is_set() or self._copies[0][0] < self.begun):
            numbers.append(heapq.heappop(self._copies)[1])
            self.duplicates += 1
        place, seed = self._place, self._settings.seed
        return [message_of(place.subject, seed, number, has_bytes=place.has_bytes) for number in numbers]
