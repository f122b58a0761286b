"""Partition: one assignment of one partition to this process, which is the epoch of its deliveries."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from idempotent.adapters.base import Delivery
from idempotent.adapters.kafka.client import OFFSET_INVALID, Raw
from idempotent.adapters.kafka.options import Ordering
from idempotent.adapters.kafka.ordered_queues import OrderedQueues, Record
from idempotent.adapters.kafka.outputs import Outputs
from idempotent.adapters.kafka.records import (
    NO_EPOCH,
    due_in_s,
    epoch_of,
    message_of,
    only_for,
    problem_of,
    size_of,
)
from idempotent.adapters.kafka.topics import TopicId
from idempotent.adapters.watermark import Watermark
from idempotent.errors import ConfigurationError, MessageError
from idempotent.message import Position
from idempotent.outcomes import Outcome
from idempotent.validation import choice

_tuple: Final = tuple.__new__
# What is delivered before the first effect is counted before it runs, with three statements more for each group. So
# most of it waits a moment for that effect.
_AT_FIRST: Final = 10
_AT_FIRST_S: Final = 0.5


@dataclass(slots=True, eq=False)
class Token:
    """One delivery of one record. Not frozen, because that makes a token for every message cheaper."""

    partition: Partition
    record: Record


@dataclass(frozen=True, slots=True)
class Limits:
    """How many messages of one partition may be unfinished.

    Attributes:
        ordering: which messages wait for each other.
        in_flight: messages delivered at once.
        pending: unfinished messages, and finished ones behind an unfinished one, at which fetching pauses.
        pending_bytes: bytes of unfinished messages and unsent outputs of all partitions, at which fetching pauses.
    """

    ordering: Ordering
    in_flight: int
    pending: int
    pending_bytes: int


class Partition:
    """The received messages of a partition, and how far they are finished."""

    def __init__(
        self, topic_id: TopicId, number: int, limits: Limits, subject: str, *, is_stored: bool = False
    ) -> None:
        """A `subject` that is not the topic makes this a retry topic, whose messages have due times.

        A partition that `is_stored` delivers no message before `begin_at`.
        """
        self.topic: Final = topic_id.topic
        self.subject: Final = subject
        self.number: Final = number
        self.is_stored: Final = is_stored
        self.is_open = True
        self.is_paused = False
        self.committed = -1
        """The last offset of which the broker has confirmed a commit; -1: none since the assignment."""
        self.foreign_id: str | None = None
        """The id of a later topic of this name, once the log has told of it."""
        self.outputs: Final = Outputs()
        # (first offset, leader epoch) of the records that a commit may name.
        self._epochs: deque[tuple[int, int]] = deque()
        self._topic_id = topic_id
        self._limits = limits
        self._has_one_lane = limits.ordering is Ordering.PARTITION
        self._has_lanes_by_key = limits.ordering is Ordering.KEY
        self._queues = OrderedQueues(limits.in_flight if self._has_one_lane else 1)
        self._watermark: Watermark[int] = Watermark()
        self._out: dict[int, Token] = {}
        self._busy = 0
        self._bytes = 0
        self._received = -1
        self.unverified: tuple[int, int] | None = None
        """The group's offset and its leader epoch, until it is certain that the log has the records before it."""
        self.has_begun_topic = False
        """Whether it is known that the group has begun the topic, which commits tell other members."""
        self.position = OFFSET_INVALID
        """The offset that the client fetches next; negative: librdkafka's constant for the beginning, end or commit."""
        self._first: int | None = None
        self._next: int | None = None
        self.is_begun = not is_stored
        self.awaits_record = False
        """Whether the store is asked where to continue only when a record was received."""
        self._begun_at = OFFSET_INVALID
        self._stored: int | None = None
        self._stored_epoch = NO_EPOCH
        self._has_effect = False
        self._finished = 0
        self._careful_until = math.inf

    def restart_at(self, offset: int) -> None:
        """Note that the client fetches from this offset now."""
        self.position, self.is_paused = offset, False
        if self._next is None or not self.is_begun:
            self._next = offset if offset >= 0 else None

    def follows(self, offset: int) -> bool:
        """Whether the offset is above all received ones. If not, the topic was deleted and created again."""
        return offset > self._received

    def add(self, raw: Raw, offset: int) -> None:
        """Add a message. Messages are added in the order of offsets."""
        expected = offset if self._next is None else min(self._next, offset)
        self._first = offset if self._first is None else self._first
        self._received = offset
        self.position = self._next = offset + 1
        epoch = epoch_of(raw)
        if not self._epochs or epoch != self._epochs[-1][1]:
            self._epochs.append((offset, epoch))
        self._watermark.add(offset)
        lane = None if self._has_one_lane else self._lane(raw, offset)
        problem = problem_of(raw)
        due = 0.0 if self.subject == self.topic else time.monotonic() + due_in_s(raw)
        record = Record(raw, offset, lane, due, expected, epoch, size_of(raw), problem)
        self._bytes += record.size
        self._queues.add(record)

    @property
    def topic_id(self) -> str | None:
        """The id of the topic; None until the broker has answered."""
        return self._topic_id.value

    @property
    def begins_at(self) -> int | None:
        """Where the client reads, until the store says where to continue; None: where its first record will be.

        Afterwards: the offset before which all messages are finished. The store never has a smaller one.
        """
        if self.is_begun:
            return self._begun_at if self.mark is None else self.mark
        return self._next if self._first is None else self._first

    @property
    def awaits_begin(self) -> bool:
        """Whether the store must be asked where to continue, before the first delivery."""
        return not (self.is_begun or (self.awaits_record and self.begins_at is None))

    def is_at(self, offset: int) -> bool:
        """Whether the messages from the store's offset on, and none before it, are unfinished or not received yet."""
        if not self.is_begun:
            return offset == self.begins_at
        return self.begins_at is not None and self.begins_at <= offset <= self.position

    def begin_at(self, offset: int) -> None:
        """Start delivering, from the store's offset, where the client reads."""
        if not self.is_begun:
            self.is_begun, self._begun_at = True, offset

    def begin_behind(self, earlier: Partition, offset: int) -> None:
        """Start delivering from the store's offset, to which the client moves from what `earlier` has received.

        The offset is to be committed, even if no message comes.
        """
        self.restart_at(offset)
        self.begin_at(offset)
        self._stored, self.unverified = offset, earlier.unverified
        # With another epoch than that of the record before it, the broker would report a truncated log.
        if earlier.has_received(offset - 1):
            self._stored_epoch = earlier.epoch_before(offset)

    def begin_anew(self) -> None:
        """Deliver nothing until the store has said again where to continue: the client may read elsewhere."""
        if self.is_stored:
            self.is_begun, self.position, self._next = False, OFFSET_INVALID, None

    def has_received(self, offset: int) -> bool:
        """Whether the client has received the log up to this offset. Compaction may have removed the record itself."""
        return self._first is not None and self._first <= offset <= self._received

    def take(self, now: float, limit: int) -> list[Delivery]:
        """The next deliveries, at most `limit`."""
        room = min(limit, self._limits.in_flight - self._busy)
        if not self._has_effect and now < self._careful_until:
            # A long row of duplicates, after offsets were set back, soon comes in full groups too.
            room = min(room, _AT_FIRST + self._finished - self._busy)
        if room <= 0 or not self.is_begun or self._topic_id.value is None:
            return []
        records = self._queues.take(now, room)
        if records and self._careful_until == math.inf:
            self._careful_until = now + _AT_FIRST_S
        self._busy += len(records)
        return [self._delivery(record, self._topic_id.value) for record in records]

    def _delivery(self, record: Record, topic_id: str) -> Delivery:
        token = self._out[record.offset] = Token(self, record)
        place = (topic_id, self.number, record.offset, record.expected, record.epoch)
        position = _tuple(Position, place)  # half the time of Position(), and every message needs one
        # Kafka marks no redelivery, but a group goes on where its last process died: what is delivered before the first
        # new effect may have killed it, and is counted before it runs only with this mark.
        redelivered = record.turns > 1 or self.subject != self.topic or not self._has_effect
        error = None if record.problem is None else MessageError(record.problem)
        message = message_of(record.raw, self.subject, position, redelivered)
        return Delivery(message, token, error, only_for(record.raw, self.subject))

    def take_back(self, token: Token) -> bool:
        """Take a delivery back; `finish` or `retry_at` follows. False: the delivery is stale."""
        if not self.is_open or self._out.get(token.record.offset) is not token:
            return False
        del self._out[token.record.offset]
        return True

    def is_next(self, record: Record) -> bool:
        """Whether all messages before this one are finished."""
        return self._watermark.is_next(record.offset)

    def finish(self, record: Record, outcome: Outcome | None = None) -> None:
        """Finish a message: its offset may be committed when all earlier messages are finished."""
        self._has_effect = self._has_effect or outcome is Outcome.PROCESSED
        self._finished += 1
        self._busy -= 1
        self._bytes -= record.size
        self._queues.finish(record)
        self._watermark.finish(record.offset)

    def retry_at(self, record: Record, due: float) -> None:
        """Deliver a message again when it is `due`."""
        self._busy -= 1
        self._queues.retry_at(record, due)

    @property
    def mark(self) -> int | None:
        """The offset to commit, before which all messages are finished; None if none is, since the assignment."""
        last = self._watermark.last
        return self._stored if last is None else last + 1

    def epoch_before(self, mark: int) -> int:
        """The leader epoch of the last record before this offset, with which the broker detects a truncated log."""
        while len(self._epochs) > 1 and self._epochs[1][0] < mark:
            self._epochs.popleft()
        return self._epochs[0][1] if self._epochs and self._epochs[0][0] < mark else self._stored_epoch

    @property
    def unfinished(self) -> int:
        """How many received messages are not finished."""
        return len(self._watermark)

    def fill(self, share: float) -> float:
        """How full it is, if it has this share of the bytes: fetching pauses at 1.

        It resumes at a half, not earlier, because each pause discards the messages fetched ahead.
        """
        messages = max(len(self._watermark), len(self.outputs))
        used = self._bytes + self.outputs.size
        return max(messages / self._limits.pending, used / (self._limits.pending_bytes * share))

    def _lane(self, raw: Raw, offset: int) -> Hashable:
        key = raw.key() if self._has_lanes_by_key else None
        return offset if key is None else key


def limits_of(ordering: Ordering | str, in_flight: int | None, pending: int, pending_bytes: int) -> Limits:
    """The limits of an ordering, checked.

    Raises:
        ConfigurationError: an unknown ordering, or a limit below 1.
    """
    ordering = choice(Ordering, ordering, "ordering")
    most = in_flight if in_flight is not None else 1 if ordering is Ordering.PARTITION else 1000
    if min(most, pending, pending_bytes) < 1:
        raise ConfigurationError(
            "max_in_flight_per_partition, max_pending_per_partition and max_pending_bytes must be at least 1"
        )
    return Limits(ordering, most, pending, pending_bytes)
