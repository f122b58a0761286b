"""Letters: what a dead letter is, which ones are meant, and how they are read without a change."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from idempotent.admin import KeyRecord
from idempotent.claims import KeyStatus
from idempotent.consumer import AnyConsumer
from idempotent.errors import AdapterError, ConfigurationError, DeadKeyError, described
from idempotent.keys import Key
from idempotent.message import Message, received_message
from idempotent.outcomes import Outcome, Result
from idempotent.registry import Registry

if TYPE_CHECKING:
    from idempotent.adapters.base import Adapter, Delivery

MAX_RECEIVED: Final = 100
"""The most letters that one look at the broker and the store takes."""
_ACK: Final = Result(Outcome.PROCESSED)
_WAIT_S: Final = 0.2
# What stays is held until the end, so that the broker does not send it again and again.
_MOST_HELD: Final = 10_000
_UPKEEP_S: Final = 0.05
# Words with a digit, and what stands in quotes, differ from message to message: ids, amounts, names.
_VARIES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|[\w-]*\d[\w-]*")
_COMPARED: Final = 300
_PLACE: Final = "letter-"


def error_group(consumer: str, reason: str) -> str:
    """The group of an error: 8 hex digits that are equal for errors of one consumer, type and text.

    Numbers, words with a digit and what stands in quotes do not count, nor what follows the first line or 300
    characters.

    Args:
        consumer: its name, `subject:group`.
        reason: `Type: text`, as in the log, on a dead letter, and in `KeyRecord.last_error`.
    """
    text = _VARIES.sub("#", reason.partition("\n")[0][:_COMPARED])
    return hashlib.blake2b(f"{consumer}\n{text}".encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter of a consumer.

    Attributes:
        message: the message that died, of the consumer's subject. `raw` is the letter as the client library has it.
        key: what the consumer recognises it by; None: it finds no key in it, or keeps none.
        record: what the store has of the key; None: nothing.
        place: where the letter is, in the broker's terms, or a digest of it: the same whenever it is read. It begins
            with `letter-`.
        reason: why it is one: the exception in one line, or the broker's words; "": not known.
        error: the group of its reason, see `error_group`.
        attempts: how often it was tried; 0: not known.
        origin: where the message was; None: not known.
        undecodable: why a part of it cannot be decoded; None: all of it can. Such a letter cannot be returned.
    """

    message: Message
    key: Key | None
    record: KeyRecord | None
    place: str
    reason: str
    error: str
    attempts: int
    origin: str | None
    undecodable: str | None = None

    @property
    def names(self) -> frozenset[str]:
        """By what a person names it: its key, the key's hash, the message's id, its place.

        An id that reads as a key or as a place is none of them: whoever sends a message chooses its id.
        """
        of_key = () if self.key is None else (str(self.key), self.key.hash.hex())
        by_id = "" if self.message.id is None else str(self.message.id)
        reads_as_other = by_id.startswith(_PLACE) or (
            self.key is not None and by_id.startswith(f"{self.key.consumer}:")
        )
        return frozenset((*of_key, *(() if not by_id or reads_as_other else (by_id,)), self.place))

    @property
    def dead(self) -> KeyRecord | None:
        """Its dead key; None: its key is not dead, or is not stored."""
        record = self.record
        return record if record is not None and record.status is KeyStatus.DEAD else None

    @property
    def label(self) -> str:
        """Its key, or else its place."""
        return self.place if self.key is None else str(self.key)

    @property
    def state(self) -> str | None:
        """The `KeyRecord.state` of its key; None: its key is not stored."""
        return None if self.record is None else self.record.state


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters are meant.

    Attributes:
        names: those with one of these `Letter.names`; empty: all.
        error: those of this group of errors; None: all.
        within_s: those whose key died in the last so many seconds, by the store's clock; None: all.
        shown: those that a person was shown: the `Letter.state` of each by its place; None: all. One whose key has
            another state now is left alone, because nobody has decided about that.
    """

    names: frozenset[str] = frozenset()
    error: str | None = None
    within_s: float | None = None
    shown: Mapping[str, str | None] | None = None

    def matches(self, letter: Letter) -> bool:
        """Whether this letter is meant."""
        if self.names and not self.names & letter.names:
            return False
        if self.error is not None and letter.error != self.error:
            return False
        if self.shown is not None and letter.place not in self.shown:
            return False
        if self.within_s is None:
            return True
        dead = letter.dead
        return dead is not None and dead.now_us - dead.update_at_us <= self.within_s * 1_000_000

    def has_changed(self, letter: Letter) -> bool:
        """Whether the key of a letter that is meant has another state than the one that was shown."""
        return self.shown is not None and self.shown.get(letter.place) != letter.state


ALL: Final = LetterFilter()


def letters(
    consumer: AnyConsumer,
    adapter: Adapter,
    *,
    only: LetterFilter = ALL,
    limit: int | None = None,
    idle_s: float = 3.0,
    on_letter: Callable[[int], object] | None = None,
) -> list[Letter]:
    """The dead letters of a consumer, which stay where they are. At most 10,000 are looked at.

    RabbitMQ and Kafka send all of them; ActiveMQ `prefetch`, 100 by default and 200 at most.

    Args:
        consumer: the consumer.
        adapter: for the broker, not open; closed afterwards.
        only: which letters.
        limit: the most letters to find; None: no limit.
        idle_s: seconds without a letter after which the reading ends.
        on_letter: called after each letter with the number of those found.

    Raises:
        ConfigurationError, AdapterError, StoreError: as `redrive`.
    """
    found: list[Letter] = []
    with Reading(consumer, adapter, idle_s) as reading:
        for _, letter in reading.each(lambda: MAX_RECEIVED if limit is None else limit - len(found)):
            if letter is not None and only.matches(letter):
                found.append(letter)
            if on_letter is not None:
                on_letter(len(found))
    return found


class Reading:
    """A context manager: inside, the dead letters of a consumer are read, each once. It closes the adapter.

    Letters that were not settled go back as they are when it closes; a requeued one might be a copy.

    Args:
        consumer: whose letters.
        adapter: for the broker, not open.
        idle_s: seconds without a letter after which it ends.

    Raises:
        ConfigurationError: the adapter cannot receive dead letters, or the checker keeps keys and has no admin.
    """

    def __init__(self, consumer: AnyConsumer, adapter: Adapter, idle_s: float) -> None:
        source = adapter.dead_letter_subject(consumer.subject)
        if source is None:
            raise ConfigurationError(
                f"{type(adapter).__name__} cannot receive dead letters, so it cannot return them"
            )
        self.consumer: Final = consumer
        self.adapter: Final = adapter
        # Who recognises positions has no keys: a message that comes back has a new position, and runs.
        self.admin: Final = None if consumer.checker.remembers.by_position else consumer.checker.admin()
        self._source = source
        self._idle_s = idle_s
        self._settled = 0

    def __enter__(self) -> Self:
        self.adapter.capacity = _MOST_HELD
        return self

    def __exit__(self, *_error: object) -> None:
        self.adapter.close()

    def settle(self, delivery: Delivery) -> None:
        """Remove a letter."""
        self.adapter.settle(delivery, _ACK)
        self._settled += 1

    def each(self, room: Callable[[], int]) -> Iterator[tuple[Delivery, Letter | None]]:
        """Each letter; None: it is one of another consumer, which shares the dead-letter target.

        Args:
            room: how many more letters may be received; 0 ends it.

        Raises:
            AdapterError: the broker gives nothing to read.
        """
        adapter, received = self.adapter, 0
        adapter.open([_reader(self._source, self.consumer)])
        last = time.monotonic()
        while time.monotonic() - last < self._idle_s:
            wanted = min(room(), MAX_RECEIVED, _MOST_HELD - received + self._settled)
            if wanted <= 0:
                break
            deliveries = adapter.receive(wanted, _WAIT_S)
            received += len(deliveries)
            for delivery, letter in zip(deliveries, self._letters(deliveries), strict=True):
                yield delivery, letter
                last = time.monotonic()
        if not received and not adapter.connected:
            if (waits_for := adapter.waits_for) is None:
                raise AdapterError(f"the broker was not reached within {self._idle_s:g} seconds")
            raise AdapterError(
                f"the dead letters of {self.consumer.subject} cannot be read from {self._source}: {waits_for}. If it "
                "does not exist, create it; if they go elsewhere, open the adapter with the worker's settings"
            )

    def _letters(self, received: Sequence[Delivery]) -> list[Letter | None]:
        """The letters of deliveries, after one look at the store; None: one of another consumer."""
        messages = [self._message_of(delivery) for delivery in received]
        keys = [
            None if self.admin is None or message is None else self.consumer.key_in(message)
            for message in messages
        ]
        wanted = [key for key in keys if key is not None]
        records = {} if self.admin is None or not wanted else self.admin.get_many(wanted)
        return [
            self._letter(delivery, message, key, None if key is None else records.get(key.hash))
            for delivery, message, key in zip(received, messages, keys, strict=True)
        ]

    def _message_of(self, delivery: Delivery) -> Message | None:
        """The message that died; None: it was of another consumer."""
        from idempotent.adapters.copies import came_from

        consumer, received = self.consumer, delivery.message
        group = self.adapter.group_of(delivery)
        if group is not None and group != consumer.group:
            return None
        if not came_from(self.adapter.origin_of(delivery), consumer.subject):
            return None
        return received_message(
            consumer.subject,
            received.body,
            received.id,
            dict(received.headers),
            redelivered=False,
            position=None,
            raw=received.raw,
            key=received.key,
            timestamp=received.timestamp,
        )

    def _letter(
        self, delivery: Delivery, message: Message | None, key: Key | None, record: KeyRecord | None
    ) -> Letter | None:
        from idempotent.adapters.copies import ATTEMPT_HEADER, OUTCOME_HEADER, REASON_HEADER, number_in

        received, name = delivery.message, self.consumer.name
        written = self.adapter.written_on(delivery)
        place = _place_of(received, written.get(REASON_HEADER))
        if delivery.error is not None:
            reason = described(delivery.error)
            return Letter(received, None, None, place, reason, error_group(name, reason), 0, None, reason)
        if message is None:
            return None
        reason = str(written.get(REASON_HEADER) or "")
        if (
            record is not None
            and record.last_error
            and reason.partition(":")[0] in ("", DeadKeyError.__name__)
        ):
            reason = record.last_error  # that of the first: the message of a copy did not run
        ran = written.get(OUTCOME_HEADER) != Outcome.REJECTED.value
        attempts = number_in(written, ATTEMPT_HEADER) if ran else None
        attempts = attempts or (record.attempts if record else 0)
        origin = self.adapter.origin_of(delivery)
        return Letter(message, key, record, place, reason, error_group(name, reason), attempts, origin)

    def pause(self, pause_s: float) -> None:
        """Wait, and let the adapter send heartbeats meanwhile."""
        until = time.monotonic() + pause_s
        while (left_s := until - time.monotonic()) > 0:
            self.adapter.receive(0, 0)
            time.sleep(min(left_s, _UPKEEP_S))


def _place_of(letter: Message, reason: object) -> str:
    """Where a letter is, the same in each connection. RabbitMQ's delivery tags are not: a digest takes their place."""
    if not isinstance(letter.position, int):
        return f"{_PLACE}{letter.position}"
    headers = sorted((str(name), repr(value)) for name, value in letter.headers.items())
    digest = hashlib.blake2b(letter.body or b"", digest_size=6)
    digest.update(
        repr((letter.id, letter.key, letter.timestamp, headers, reason)).encode("utf-8", "surrogatepass")
    )
    return f"{_PLACE}{digest.hexdigest()}"


def _reader(source: str, consumer: AnyConsumer) -> AnyConsumer:
    """The consumer that reads the dead letters, in a group of its own: the consumer's own group may be running."""
    from idempotent.checkers import MemoryChecker

    registry = Registry()
    return registry.consumer(source, group=f"{consumer.group}-redrive", checker=MemoryChecker())(
        lambda _: None
    )
