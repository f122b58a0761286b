"""Resets: where to begin or continue when there is no position of a partition, or the broker does not have it."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from idempotent.adapters.kafka.beginnings import Beginnings
from idempotent.adapters.kafka.client import (
    OFFSET_BEGINNING,
    KafkaConsumer,
    KafkaError,
    KafkaException,
    Raw,
    TopicPartition,
    error_of,
)
from idempotent.adapters.kafka.options import Reset
from idempotent.adapters.kafka.partition import Partition
from idempotent.adapters.kafka.records import epoch_of
from idempotent.adapters.kafka.topics import TopicId, TopicIds
from idempotent.errors import AdapterError
from idempotent.logs import EventLog

log = EventLog(__name__)
_ANSWER_S: Final = 5.0
_RETRY_S: Final = 1.0
_PATIENCE_S: Final = 10.0
# The client library gives no offset then, and one error code for all.
_TRUNCATED: Final = "log truncation detected"


@dataclass(slots=True, eq=False)
class _Lost:
    partition: Partition
    offset: int | None
    reason: str
    topic_id: TopicId | None
    retry_at: float = 0.0
    complain_at: float = field(default_factory=lambda: time.monotonic() + _PATIENCE_S)

    @property
    def is_new(self) -> bool:
        """Whether the group has no offset of the partition."""
        return self.topic_id is None

    @property
    def is_due(self) -> bool:
        if self.topic_id is not None and None in (self.topic_id.value, self.partition.topic_id):
            return False  # the broker has not answered yet
        return time.monotonic() >= self.retry_at

    @property
    def is_recreated(self) -> bool:
        return self.topic_id is not None and self.topic_id.value != self.partition.topic_id


class Resets:
    """Decides where partitions without a position are read from. librdkafka would decide, and log nothing.

    A partition without a committed offset begins where `Beginnings` says. A topic that was deleted and created again is
    read from its beginning. Otherwise the broker has lost records, by retention or with the end of its log: the policy
    decides, and an error says so.

    Args:
        policy: what to do when records are lost, and where the group begins a topic.
        topic_ids: looks up whether a topic was created again.
    """

    def __init__(self, policy: Reset, topic_ids: TopicIds) -> None:
        self._policy = policy
        self._topic_ids = topic_ids
        self.beginnings: Final = Beginnings(policy)
        """Decides where partitions begin."""
        self._lost: list[_Lost] = []
        self._doubtful: list[Partition] = []

    def begin(self, consumer: KafkaConsumer, partitions: Iterable[Partition]) -> None:
        """Learn the leader epochs of the committed offsets, which the client library does not verify at the start."""
        named = {(each.topic, each.number): each for each in partitions}
        if not named:
            return
        try:
            found = consumer.committed([TopicPartition(*name) for name in named], timeout=_ANSWER_S)
        except KafkaException as error:
            log.warning("epoch_unknown", extra={"error": error_of(error)})
            return
        self.beginnings.learn(found)
        for tp in found:
            if tp.error is None and tp.offset >= 0 and tp.leader_epoch is not None:
                named[tp.topic, tp.partition].unverified = tp.offset, tp.leader_epoch

    def accepts(self, partition: Partition, raw: Raw) -> bool:
        """Whether the log did not lose records between the group's offset and this record.

        It did not if both are of one leader epoch. Otherwise the broker is asked in `upkeep`, and the record comes
        again.
        """
        if partition.unverified is not None and epoch_of(raw) <= partition.unverified[1]:
            partition.unverified = None
        if partition.unverified is not None and partition not in self._doubtful:
            self._doubtful.append(partition)
        return partition.unverified is None

    def add(self, partition: Partition, offset: int | None, reason: str) -> None:
        """Note a partition that stands still at `offset`; None: no offset was committed, or the log was truncated."""
        is_new = offset is None and _TRUNCATED not in reason
        self._lost = [one for one in self._lost if one.partition is not partition]
        topic_id = None if is_new else self._topic_ids.ask({partition.topic})[partition.topic]
        self._lost.append(_Lost(partition, offset, reason, topic_id))

    def upkeep(self, consumer: KafkaConsumer, partitions: Collection[Partition]) -> list[Partition]:
        """Let them continue as soon as possible. Returns those whose topic was created again.

        Args:
            consumer: the client.
            partitions: all that are assigned.

        Raises:
            AdapterError: the broker has lost records, and the policy is `error`.
        """
        self._verify(consumer)
        self.beginnings.upkeep(consumer, partitions)
        if not self._lost:
            return []
        lost = [one for one in self._lost if one.partition.is_open]
        due = [one for one in lost if one.is_due]
        self._lost = [one for one in lost if one not in due]
        try:
            starts = {one.partition: self._start(consumer, one) for one in due if not one.is_new}
            new = [one.partition for one in due if one.is_new]
            starts |= self.beginnings.find(consumer, new, partitions)
            _restart(consumer, starts, partitions)
        except KafkaException as error:
            log.warning("seek_failed", extra={"error": error_of(error)})
            starts = {}
        waiting = [one for one in due if one.partition not in starts]
        for one in waiting:
            one.retry_at = time.monotonic() + _RETRY_S
            if one.is_new and time.monotonic() > one.complain_at:
                one.complain_at = math.inf
                about = {"topic": one.partition.topic, "partition": one.partition.number}
                log.warning("beginning_awaited", extra=about)
        self._lost += waiting
        return [one.partition for one in due if one.is_recreated and one.partition in starts]

    def _verify(self, consumer: KafkaConsumer) -> None:
        doubtful, self._doubtful = self._doubtful, []
        for partition in doubtful:
            if partition.is_open and partition.unverified is not None:
                (offset, epoch), partition.unverified = partition.unverified, None
                try:
                    # Asks the broker where this epoch ended.
                    where = TopicPartition(partition.topic, partition.number, offset, leader_epoch=epoch)
                    consumer.seek(where)
                except KafkaException as error:
                    log.warning("seek_failed", extra={"topic": partition.topic, "error": error_of(error)})
                    partition.unverified = offset, epoch
                    self._doubtful.append(partition)

    def _start(self, consumer: KafkaConsumer, one: _Lost) -> int:
        """The offset to continue from."""
        partition = one.partition
        is_truncated = _TRUNCATED in one.reason
        if one.is_recreated or not (partition.is_begun or is_truncated):
            return OFFSET_BEGINNING
        where = TopicPartition(partition.topic, partition.number)
        first, end = consumer.get_watermark_offsets(where, timeout=_ANSWER_S)
        name = f"{partition.topic}/{partition.number}"
        is_removed = one.offset is not None and one.offset < first
        if is_removed:
            what = (
                f"the records {one.offset} to {first - 1} of {name} were removed before they were processed"
            )
        else:
            what = f"{name} has lost records at its end: {one.reason}"
        if self._policy is Reset.ERROR:
            raise AdapterError(
                f"{what}. Find out what is missing; the broker does not have it. To continue without it, start once "
                "with consumer_config={'auto.offset.reset': 'earliest'}, or set the offset of the group"
            )
        if partition.is_stored and not is_removed:
            raise AdapterError(
                f"{what}. New records have offsets that the database counts as processed. Find out what is missing, "
                "then set next_offset of the partition in the table of offsets, and the offset of the group"
            )
        log.error(
            "records_lost",
            extra={
                "topic": partition.topic,
                "partition": partition.number,
                "position": one.offset,
                "first": first,
                "end": end,
                "error": what,
            },
        )
        return first if self._policy is Reset.EARLIEST else end


def _restart(
    consumer: KafkaConsumer, starts: Mapping[Partition, int], partitions: Iterable[Partition]
) -> None:
    """Fetch from these offsets. The client library does not seek in a partition that stands still."""
    if not starts:
        return
    for partition, start in starts.items():
        partition.restart_at(start)
    try:
        consumer.incremental_unassign([TopicPartition(each.topic, each.number) for each in starts])
        consumer.incremental_assign(
            [TopicPartition(each.topic, each.number, each.position) for each in starts]
        )
    except KafkaException as error:
        if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 - public, despite its name
            raise
        # An eager strategy of assignment, with which only the whole assignment can be changed.
        everything = list(partitions)
        consumer.assign([TopicPartition(each.topic, each.number, each.position) for each in everything])
        for each in everything:
            each.is_paused = False
