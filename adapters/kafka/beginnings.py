"""Beginnings: where a group begins to read partitions of which it has no offset."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from idempotent.adapters.kafka.client import (
    OFFSET_BEGINNING,
    KafkaConsumer,
    KafkaException,
    TopicPartition,
    error_of,
)
from idempotent.adapters.kafka.commits import BEGUN, level_of, raise_if_refused
from idempotent.adapters.kafka.options import Reset
from idempotent.adapters.kafka.partition import Partition
from idempotent.adapters.kafka.records import NO_EPOCH
from idempotent.logs import EventLog

log = EventLog(__name__)
_ANSWER_S: Final = 5.0
_RETRY_S: Final = 1.0


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
