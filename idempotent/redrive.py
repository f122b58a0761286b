"""Dead letters of a consumer: look at them, return them to their subject so that they run, or drop them.

Long because a reader follows a letter from the broker through the store and back in one file.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from idempotent.admin import KeyRecord
from idempotent.claims import UNKNOWN_EFFECT, ClaimRequest, KeyStatus, Verdict
from idempotent.consumer import AnyConsumer
from idempotent.errors import AdapterError, ConfigurationError, DeadKeyError, described
from idempotent.keys import Key
from idempotent.logs import EventLog
from idempotent.message import Message, received_message
from idempotent.observe.log_lines import about_message
from idempotent.outcomes import Outcome, Result
from idempotent.registry import Registry
from idempotent.validation import number, seconds, whole

if TYPE_CHECKING:
    from idempotent.adapters.base import Adapter, Delivery

log = EventLog(__name__)
_ACK: Final = Result(Outcome.PROCESSED)
_MAX_RECEIVED: Final = 100
_WAIT_S: Final = 0.2
# What stays is held until the end, so that the broker does not send it again and again.
_MOST_HELD: Final = 10_000
_UPKEEP_S: Final = 0.05
_LOOK_S: Final = 0.5
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


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters are meant.

    Attributes:
        names: those with one of these `Letter.names`; empty: all.
        error: those of this group of errors; None: all.
        within_s: those whose key died in the last so many seconds, by the store's clock; None: all.
        places: those at one of these places; empty: all.
        died_by_us: not those whose key died after this time of the store; None: all.
    """

    names: frozenset[str] = frozenset()
    error: str | None = None
    within_s: float | None = None
    places: frozenset[str] = frozenset()
    died_by_us: int | None = None

    def matches(self, letter: Letter) -> bool:
        """Whether this letter is meant."""
        if self.names and not self.names & letter.names:
            return False
        if self.error is not None and letter.error != self.error:
            return False
        dead = letter.dead
        if self.places and letter.place not in self.places:
            return False
        if self.died_by_us is not None and dead is not None and dead.update_at_us > self.died_by_us:
            return False
        if self.within_s is None:
            return True
        return dead is not None and dead.now_us - dead.update_at_us <= self.within_s * 1_000_000


ALL: Final = LetterFilter()


@dataclass(frozen=True, slots=True)
class Redriven:
    """What a redrive did.

    Attributes:
        returned: letters published to their subject again.
        reopened: how many of them had a dead key.
        left: letters that stay dead: they have no key, their key changed during the redrive, or they are counted below.
        unknown: letters that stay because their effect may have happened; a person decides with `keys resolve`.
        again: letters that stay because their message was returned already: copies of it, or it died again.
        others: letters of other subjects or groups, which share the dead-letter target.
        unreadable: letters that stay as they are because a part of them cannot be decoded, and would be lost.
        died: of the first ones, which `canary` waited for, those that died again: the redrive ended with them.
        open: of the first ones, those that were neither done nor dead in time: the redrive ended with them.
        undated: letters that a choice by time passed over because their key is not dead, such as those that were
            returned before, or whose redrive was interrupted.
    """

    returned: int = 0
    reopened: int = 0
    left: int = 0
    unknown: int = 0
    again: int = 0
    others: int = 0
    unreadable: int = 0
    died: int = 0
    open: int = 0
    undated: int = 0

    @property
    def stopped(self) -> bool:
        """Whether the redrive ended because of its first letters."""
        return bool(self.died or self.open)


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
    with _Reading(consumer, adapter, idle_s) as reading:
        for _, letter in reading.each(lambda: _MAX_RECEIVED if limit is None else limit - len(found)):
            if letter is not None and only.matches(letter):
                found.append(letter)
            if on_letter is not None:
                on_letter(len(found))
    return found


def drop(
    consumer: AnyConsumer,
    adapter: Adapter,
    *,
    only: LetterFilter,
    note: str,
    limit: int | None = None,
    idle_s: float = 3.0,
    on_letter: Callable[[int], object] | None = None,
) -> int:
    """Remove dead letters, whose messages will never run. Returns how many were removed.

    The key of a letter is marked as done first, also one that is not stored, so that later deliveries of its message
    are duplicates. But where another letter of the key stays, such as a copy, the key stays dead: that letter can still
    be returned. All letters are read before the first is removed. Each one is logged (`letter_dropped`) with the note.

    Args:
        consumer: the consumer of the letters.
        adapter: for the broker, not open; closed afterwards.
        only: which letters.
        note: why, and by whom.
        limit: the most letters to remove; None: no limit.
        idle_s: seconds without a letter after which the work ends.
        on_letter: called after each letter with the number of those removed.

    Raises:
        ConfigurationError, AdapterError, StoreError: as `redrive`.
    """
    dropped = 0
    with _Reading(consumer, adapter, idle_s) as reading:
        found = [
            (delivery, letter)
            for delivery, letter in reading.each(lambda: _MAX_RECEIVED)
            if letter is not None
        ]
        meant = [pair for pair in found if only.matches(pair[1])][:limit]
        places = {id(delivery) for delivery, _ in meant}
        kept = {letter.key for delivery, letter in found if id(delivery) not in places}
        done: set[Key | None] = {None} if reading.admin is not None else {letter.key for _, letter in meant}
        for delivery, letter in meant:
            if letter.key not in done and letter.key not in kept:
                if not _is_done(consumer, reading, letter):
                    continue
                done.add(letter.key)
            reading.settle(delivery)
            dropped += 1
            extra = {
                **about_message(letter.message),
                "consumer": consumer.name,
                "key": None if letter.key is None else str(letter.key),
                "position": letter.place,
                # Its text may quote the message.
                "error": letter.reason.partition(":")[0],
                "note": note,
            }
            log.warning("letter_dropped", extra=extra)
            if on_letter is not None:
                on_letter(dropped)
    return dropped


def _is_done(consumer: AnyConsumer, reading: _Reading, letter: Letter) -> bool:
    """Whether no delivery of a letter's message runs any more, because its key is done now."""
    assert reading.admin is not None
    assert letter.key is not None
    record = letter.record
    if record is not None:
        return record.status is KeyStatus.DONE or reading.admin.mark_done(record)
    decision = consumer.checker.protocol.claim(ClaimRequest(letter.key))
    if decision.claim is None:
        return decision.verdict is Verdict.DUPLICATE
    return consumer.checker.protocol.complete(decision.claim)


def redrive(
    consumer: AnyConsumer,
    adapter: Adapter,
    *,
    only: LetterFilter = ALL,
    limit: int | None = None,
    rate: float | None = None,
    canary: int | None = None,
    canary_wait_s: float = 60.0,
    dry_run: bool = False,
    idle_s: float = 3.0,
    include_unknown: bool = False,
    on_letter: Callable[[Redriven], object] | None = None,
) -> Redriven:
    """Return a consumer's dead letters to its subject. A crash loses none, but may return a letter twice.

    The key is reopened first, then the message is published and confirmed, and only then is the letter removed. Letters
    that die while it works, beside a running worker, stay: each message is returned at most once.

    Where several groups receive each message of a subject, the others acknowledge what is returned, and do not run it.

    A checker that recognises positions, such as `OffsetChecker`, has no keys to reopen: a message that comes back has a
    new position, and runs; one that a crash returned twice runs twice.

    Args:
        consumer: the consumer of the dead letters.
        adapter: for the broker, not open; closed afterwards.
        only: which letters; the others are neither returned nor counted.
        limit: the most letters to return; None: all.
        rate: the most letters to return in a second; None: as many as the broker takes.
        canary: return so many letters first, wait until a worker has processed them, and go on only if all are done.
            Fewer letters are waited for too.
        canary_wait_s: how long that may take, in seconds.
        dry_run: count, and change nothing.
        idle_s: seconds without a letter after which the redrive ends.
        include_unknown: also return messages whose effect may have happened (`on_expired_lease="park"`); if it had, it
            happens twice.
        on_letter: called after each letter with the counts so far.

    Raises:
        ConfigurationError: the adapter cannot receive dead letters, or the checker keeps keys and has no admin; a
            choice of letters or a canary with a checker that recognises positions; a `rate` below 0.001; a `canary`
            below 1.
        AdapterError: the broker failed, or gives nothing to read, for example because a dead-letter topic is missing.
        StoreError: the store did not answer.
    """
    if consumer.checker.remembers.by_position and (only != ALL or canary is not None):
        raise ConfigurationError(
            f"{type(consumer.checker).__name__} keeps no keys: a letter that is returned past one that stays is read "
            "again by the next redrive, and would run twice, and nothing tells what became of it. Return all letters "
            "of this consumer, without a choice or a canary"
        )
    pause_s = 0.0 if rate is None else 1 / number(rate, "rate", least=0.001)
    first = 0 if canary is None else whole(canary, "canary")
    wait_s = seconds(canary_wait_s, "canary_wait_s")
    with _Reading(consumer, adapter, idle_s) as reading:
        work = _Redrive(reading, include_unknown=include_unknown, dry_run=dry_run, only=only)

        def room() -> int:
            rest = _MAX_RECEIVED if limit is None else limit - work.done.returned
            if work.done.stopped:
                return 0
            if work.done.returned < first:
                rest = min(rest, first - work.done.returned)
            return min(rest, 1) if pause_s else rest

        for delivery, letter in reading.each(room):
            if work.handle(delivery, letter):
                if work.done.returned == first:
                    work.await_returned(wait_s)
                elif pause_s:
                    reading.pause(pause_s)
            if on_letter is not None:
                on_letter(work.done)
        if not dry_run and 0 < work.done.returned < first:
            work.await_returned(wait_s)
    return work.done


class _Reading:
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
            wanted = min(room(), _MAX_RECEIVED, _MOST_HELD - received + self._settled)
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


class _Redrive:
    """Decides about one letter after the other."""

    def __init__(
        self, reading: _Reading, *, include_unknown: bool, dry_run: bool, only: LetterFilter
    ) -> None:
        self.done = Redriven()
        self._reading = reading
        self._include_unknown = include_unknown
        self._dry_run = dry_run
        self._only = only
        self._returned: set[Hashable] = set()
        self._began_us: int | None = None
        """The store's clock when it was first read."""

    def await_returned(self, wait_s: float) -> None:
        """Wait until all that was returned is done, or one of it is dead, or the time is over."""
        until = time.monotonic() + wait_s
        keys = [key for key in self._returned if isinstance(key, Key)]
        while True:
            assert self._reading.admin is not None
            records = self._reading.admin.get_many(keys)
            found = [record.status for record in records.values()]
            died = found.count(KeyStatus.DEAD)
            running = len(keys) - found.count(KeyStatus.DONE) - died
            if not running or died or time.monotonic() >= until:
                self.done = replace(self.done, died=died, open=running)
                return
            self._reading.pause(_LOOK_S)

    def handle(self, delivery: Delivery, letter: Letter | None) -> bool:
        """Return a letter to its subject, and count it. False: it stays a dead letter."""
        if letter is None:
            return self._leave(others=1)
        if not self._only.matches(letter):
            if self._only.within_s is not None and letter.dead is None:
                self.done = replace(self.done, undated=self.done.undated + 1)
            return False
        if letter.undecodable is not None:
            log.warning(
                "letter_unreadable", extra={**about_message(letter.message), "error": str(delivery.error)}
            )
            return self._leave(unreadable=1)
        identity = letter.message.id if self._reading.admin is None else letter.key
        if identity is None:
            return self._leave()
        dead = letter.dead
        if dead is not None and self._began_us is None:
            self._began_us = dead.now_us
        if identity in self._returned or (dead is not None and dead.update_at_us > (self._began_us or 0)):
            return self._leave(again=1)
        if dead is not None and dead.last_error == UNKNOWN_EFFECT and not self._include_unknown:
            return self._leave(unknown=1)
        if not self._dry_run and not self._return(letter, delivery):
            return self._leave()
        self._returned.add(identity)
        done = self.done
        self.done = replace(done, returned=done.returned + 1, reopened=done.reopened + (dead is not None))
        return not self._dry_run

    def _return(self, letter: Letter, delivery: Delivery) -> bool:
        """Reopen the key, publish the message, and only then remove the letter. False: the key has changed."""
        reading = self._reading
        if letter.dead is not None and (reading.admin is None or not reading.admin.reopen(letter.dead)):
            return False
        reading.adapter.put_back(letter.message, reading.consumer.group)
        reading.settle(delivery)
        return True

    def _leave(self, *, unknown: int = 0, again: int = 0, others: int = 0, unreadable: int = 0) -> bool:
        done = self.done
        self.done = replace(
            done,
            left=done.left + 1,
            unknown=done.unknown + unknown,
            again=done.again + again,
            others=done.others + others,
            unreadable=done.unreadable + unreadable,
        )
        return False


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
