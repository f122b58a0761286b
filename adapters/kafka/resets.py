"""Resets: where to begin or continue when there is no position of a partition, or the broker does not have it."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from idempotent.adapters.kafka.client import (
    OFFSET_BEGINNING,
    KafkaConsumer,
    KafkaError,
    KafkaException,
    Raw,
    TopicPartition,
    error_of,
)
from idempotent.adapters.kafka.commits import BEGUN, level_of, raise_if_refused
from idempotent.adapters.kafka.options import Reset
from idempotent.adapters.kafka.partition import Partition
from idempotent.adapters.kafka.records import NO_EPOCH, epoch_of
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
        if self.partition.awaits_begin and self.partition.begins_at is not None:
            return False  # the store has not answered yet
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
        group: the name of the group, for what a person has to type.
    """

    def __init__(self, policy: Reset, topic_ids: TopicIds, group: str) -> None:
        self._policy = policy
        self._group = group
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
            if tp.error is None and tp.offset >= 0:
                partition = named[tp.topic, tp.partition]
                partition.restart_at(tp.offset)
                if tp.leader_epoch is not None:
                    partition.unverified = tp.offset, tp.leader_epoch

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
            restart(consumer, starts, partitions)
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
                    partition.begin_anew()
                    partition.awaits_record = True  # it shows that the broker found the epoch
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
        set_stored = f"idempotent offsets set {self._group} {partition.topic} {partition.number}"
        if partition.is_stored and not is_removed:
            raise AdapterError(
                f"{what}. New records have offsets that the database counts as processed. Find out what is missing, "
                "then set the offset of the group with kafka-consumer-groups.sh --reset-offsets, and the stored one. "
                f"Type: {set_stored} OFFSET --url URL"
            )
        if self._policy is Reset.ERROR:
            continued = "set the offset of the group with kafka-consumer-groups.sh --reset-offsets"
            if partition.is_stored:
                continued = f"set the stored offset. Type: {set_stored} {first} --url URL"
            raise AdapterError(
                f"{what}. Find out what is missing; the broker does not have it. To continue without it, start once "
                f"with consumer_config={{'auto.offset.reset': 'earliest'}}, or {continued}"
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


def restart(
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


class Beginnings:
    """Decides where a group begins, and looks where it has begun.

    A partition without an offset of the group is read from its beginning. Only with the policy `latest`, a group that
    begins a topic begins at the ends of all its partitions, and commits them at once, with a mark. So partitions that
    are added later are known by their missing offsets, to every member and at any time. Offsets without the mark are
    those of another client: its group has none in partitions that had no message, and old records lie in them.

    Args:
        policy: where a group begins a topic.
    """

    def __init__(self, policy: Reset) -> None:
        self._policy = policy
        self._begun: set[str] = set()
        self._missing: set[str] = set()
        self._look_at = 0.0

    def note_missing(self, topic: str) -> None:
        """Note that a topic does not exist: when it is created, the group was there before it."""
        self._missing.add(topic)

    def learn(self, committed: Iterable[TopicPartition]) -> None:
        """Learn from the group's offsets which topics it has begun."""
        self._begun |= {tp.topic for tp in committed if tp.offset >= 0 and tp.metadata == BEGUN}

    def upkeep(self, consumer: KafkaConsumer, assigned: Collection[Partition]) -> None:
        """Begin the topics that this member has to begin, and look which ones others have begun."""
        doubtful = [partition for partition in assigned if not partition.has_begun_topic]
        if doubtful and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _RETRY_S
            for topic in {each.topic for each in doubtful if not self._has_begun(each)}:
                try:
                    self._group_offsets(consumer, topic, assigned)
                except KafkaException as error:
                    about = {"topic": topic, "error": error_of(error)}
                    log.log(level_of(error.args[0]), "seek_failed", extra=about)
        for partition in doubtful:
            partition.has_begun_topic = self._has_begun(partition)

    def find(
        self, consumer: KafkaConsumer, new: Iterable[Partition], assigned: Collection[Partition]
    ) -> dict[Partition, int]:
        """Where partitions begin of which the group has no offset; without those for which another member decides.

        Raises:
            KafkaException: the broker did not answer, or refused a commit.
        """
        starts: dict[Partition, int] = {}
        added: list[Partition] = []
        offsets: dict[str, Mapping[int, int]] = {}
        for partition in new:
            topic = partition.topic
            if partition.is_stored and partition.is_begun:
                starts[partition] = partition.position
                continue
            if self._begins_first(partition):
                starts[partition] = OFFSET_BEGINNING
                continue
            if topic not in offsets:
                offsets[topic] = self._group_offsets(consumer, topic, assigned)
            if topic in self._begun:
                starts[partition] = offsets[topic].get(partition.number, OFFSET_BEGINNING)
                added += [] if partition.number in offsets[topic] else [partition]
        if added:
            log.info("partitions_are_new", extra={"partitions": [f"{p.topic}/{p.number}" for p in added]})
        return starts

    def _begins_first(self, partition: Partition) -> bool:
        """Whether the group begins with the first record; a retry topic has copies of failed messages."""
        return self._policy is not Reset.LATEST or partition.topic != partition.subject

    def _has_begun(self, partition: Partition) -> bool:
        return self._begins_first(partition) or partition.topic in self._begun

    def _group_offsets(
        self, consumer: KafkaConsumer, topic: str, assigned: Collection[Partition]
    ) -> dict[int, int]:
        """The group's offsets of a topic, by partition. Begins the topic if that is up to this member.

        Only the owner of partition 0 begins a topic: two that did might commit over each other's progress.
        """
        about = consumer.list_topics(topic, timeout=_ANSWER_S).topics[topic]
        if about.error is not None:
            raise KafkaException(about.error)
        asked = [TopicPartition(topic, number) for number in about.partitions]
        found = consumer.committed(asked, timeout=_ANSWER_S)
        raise_if_refused(found)
        self.learn(found)
        offsets = {tp.partition: tp.offset for tp in found if tp.offset >= 0}
        is_younger = topic in self._missing and not offsets  # than the group
        owner = next((p for p in assigned if p.topic == topic and p.number == 0), None)
        if topic not in self._begun and (owner is not None or is_younger):
            begun = _begin(consumer, found, owner, is_younger=is_younger)
            log.info("topic_begun", extra={"topic": topic, "offsets": begun})
            self._begun.add(topic)
            offsets |= begun
        if topic in self._begun:
            self._missing.discard(topic)
        return offsets


def _begin(
    consumer: KafkaConsumer, found: Sequence[TopicPartition], owner: Partition | None, *, is_younger: bool
) -> dict[int, int]:
    """Commit, with the mark, where the group begins the partitions of which it has no offset. Returns these offsets."""
    begun: list[TopicPartition] = []
    for tp in found:
        if tp.offset < 0:
            first, end = consumer.get_watermark_offsets(tp, timeout=_ANSWER_S)
            begun.append(_marked(tp, first if is_younger else end))
    if not begun and owner is not None and owner.mark is None:
        # Only the mark is missing. When a message is finished, the next commit has it, and this one might undo that.
        begun = [_marked(tp, tp.offset) for tp in found if tp.partition == owner.number]
    if begun:
        raise_if_refused(consumer.commit(offsets=begun, asynchronous=False))
    return {tp.partition: tp.offset for tp in begun}


def _marked(tp: TopicPartition, offset: int) -> TopicPartition:
    epoch = _number(tp.leader_epoch)
    return TopicPartition(tp.topic, tp.partition, offset, metadata=BEGUN, leader_epoch=epoch)


def _number(epoch: int | None) -> int:
    return NO_EPOCH if epoch is None else epoch
