"""Assignment: the partitions assigned to this process, and their commits."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from idempotent.adapters.base import Delivery
from idempotent.adapters.kafka.client import KafkaConsumer, KafkaException, Raw, TopicPartition, error_of
from idempotent.adapters.kafka.commits import Commits
from idempotent.adapters.kafka.offsets import StoredOffsets
from idempotent.adapters.kafka.options import Ordering
from idempotent.adapters.kafka.partition import Limits, Partition
from idempotent.adapters.kafka.records import origin_of
from idempotent.adapters.kafka.resets import Resets, restart
from idempotent.adapters.kafka.topics import TopicId, TopicIds
from idempotent.logs import EventLog

log = EventLog(__name__)
Name = tuple[str, int]
_HALF: Final = 0.5
_TURN_S: Final = 0.1
# How long the thread that receives waits for the end of a partition.
_END_S: Final = 1.0
_LOOK_S: Final = 15.0


class Assignment:
    """The epochs by partition, and the callbacks of a rebalance.

    The callbacks run within the consumer's calls, in the adapter's thread, and must not raise. They cannot wait for
    running messages of a revoked partition, whose results arrive through the same thread. So they commit the finished
    messages; the new owner gets the others again, and the store recognises those already processed.

    Args:
        topic_ids: looks up the ids of topics.
        limits: of each partition.
        retries: the subjects by retry topic.
        stored: the offsets that checkers keep.
        commits: commits offsets.
        resets: decides where to continue when the broker does not have a position.
        interval_s: seconds between two commits.
        every: finished messages after which a commit is due at once.
    """

    def __init__(
        self,
        topic_ids: TopicIds,
        limits: Limits,
        retries: Mapping[str, str],
        stored: StoredOffsets,
        commits: Commits,
        resets: Resets,
        *,
        interval_s: float,
        every: int,
    ) -> None:
        self._retries = retries
        self._stored = stored
        self._commits = commits
        self._topic_ids = topic_ids
        self._resets = resets
        self._limits = limits
        self._interval_s = interval_s
        self._every = every
        self._partitions: dict[Name, Partition] = {}
        # The partitions take turns, so that a full one does not starve the others.
        self._turns: deque[Partition] = deque()
        self._ids: Mapping[str, TopicId] = {}
        self._look_at = time.monotonic() + _LOOK_S
        self._suspects: Collection[tuple[Partition, str | None]] = ()
        self._begun_again: list[tuple[str | None, Partition]] = []
        self._finished = 0
        self._committed_at = time.monotonic()
        self.was_assigned = False

    # Callbacks

    def on_assign(self, consumer: KafkaConsumer, assigned: Sequence[TopicPartition]) -> None:
        log.info("partitions_assigned", extra=_named(assigned))
        self.was_assigned = True
        self._resets.begin(consumer, self._begin([(tp.topic, tp.partition) for tp in assigned]))

    def on_revoke(self, consumer: KafkaConsumer, revoked: Sequence[TopicPartition]) -> None:
        log.info("partitions_revoked", extra=_named(revoked))
        partitions = self._of(revoked)
        marks = _marks(partitions)
        if marks:
            # Failed commits of the other partitions stay due.
            self._commits.commit(consumer, marks)
        self._end(partitions)

    def on_lost(self, _: KafkaConsumer, lost: Sequence[TopicPartition]) -> None:
        # Another process may own them already: a commit now could move its offsets back.
        log.info("partitions_lost", extra=_named(lost))
        self._end(self._of(lost))

    # Messages

    def add(self, raw: Raw) -> None:
        """Add a received message."""
        topic, number, offset = origin_of(raw)
        partition = self._partitions.get((topic, number))
        if partition is None:
            return  # revoked since
        if partition.unverified is not None and not self._resets.accepts(partition, raw):
            return  # it comes again
        if not partition.follows(offset):
            partition = self._begin_again(partition)
        partition.add(raw, offset)

    def reset(self, raw: Raw, reason: str) -> None:
        """Handle the client's error that the broker does not have the position of a partition."""
        topic, number = raw.topic(), raw.partition()
        if topic is not None and number is not None and (partition := self._partitions.get((topic, number))):
            self._resets.add(partition, raw.offset(), reason)

    def note_missing(self, topic: str) -> None:
        """Handle the client's error that a topic does not exist."""
        self._resets.beginnings.note_missing(topic)

    def _begin_again(self, partition: Partition) -> Partition:
        self._end([partition])
        (begun,) = self._begin([(partition.topic, partition.number)])
        self._begun_again.append((partition.topic_id, begun))
        return begun

    def _say_begun_again(self) -> None:
        """Name the partitions whose topic was created again: librdkafka may also go back in the same topic."""
        for was_in, partition in self._begun_again:
            if was_in is not None and partition.topic_id not in (None, was_in):
                about = {"topic": partition.topic, "partition": partition.number}
                log.warning("offsets_began_anew", extra=about)
        self._begun_again = [
            pair for pair in self._begun_again if pair[1].is_open and pair[1].topic_id is None
        ]

    def _look_for_new_topics(self) -> None:
        """Say that a topic was deleted and created again, and is longer now: then the client reads on in the new one.

        It says so at the second look, because the client may notice a moment later than this.
        """
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_S
        found: set[tuple[Partition, str | None]] = {
            (partition, new)
            for partition in self._turns
            if partition.topic_id is not None
            and (topic_id := self._ids.get(partition.topic)) is not None
            and (new := topic_id.value) not in (None, partition.topic_id, partition.foreign_id)
        }
        for partition, new in found.intersection(self._suspects):
            partition.foreign_id = new
            about = {"topic": partition.topic, "partition": partition.number, "position": partition.position}
            log.error("topic_made_again", extra=about)
        self._suspects = found
        self._ids = self._topic_ids.ask({partition.topic for partition in self._turns}, insists=False)

    def begin_stored(self, consumer: KafkaConsumer) -> None:
        """Read partitions where their checkers say: before the first delivery, and whenever a database went back."""
        for partition, offset in self._stored.ask(self._turns).items():
            if partition.is_at(offset):
                partition.begin_at(offset)
            else:
                self._move(consumer, partition, offset)

    def _move(self, consumer: KafkaConsumer, partition: Partition, offset: int) -> None:
        was_at = partition.begins_at
        self._end([partition])
        (begun,) = self._begin([(partition.topic, partition.number)])
        begun.begin_behind(partition, offset)
        try:
            restart(consumer, {begun: offset}, self._turns)
        except KafkaException as error:
            log.warning("seek_failed", extra={"topic": partition.topic, "error": error_of(error)})
            begun.begin_anew()  # and be moved by the next look
            return
        # Ahead is where a crash, or a handler that outlasts a rebalance, leaves the store.
        level = logging.INFO if was_at is None or was_at < offset else logging.WARNING
        about = {"topic": partition.topic, "partition": partition.number}
        log.log(level, "stored_offset_wins", extra={**about, "offset": offset, "position": was_at})
        self.count_finished()  # so that the offset is committed

    def take(self, limit: int, full: Container[str], now: float) -> list[Delivery]:
        """At most `limit` deliveries of subjects not `full`, shared among the partitions, and in order within each."""
        taken: list[Delivery] = []
        hungry = [partition for partition in self._turns if partition.subject not in full]
        last: Partition | None = None
        while hungry and len(taken) < limit:
            share = max((limit - len(taken)) // len(hungry), 1)
            more = []
            for partition in hungry:
                found = partition.take(now, min(share, limit - len(taken)))
                taken += found
                last = partition if found else last
                if len(found) == share:
                    more.append(partition)
            hungry = more
        if last is not None:
            # The partitions that got no turn come first next time.
            self._turns.rotate(-1 - self._turns.index(last))
        return taken

    def backlog(self, consumer: KafkaConsumer) -> dict[str, dict[str, int]]:
        """The records that are not finished, by subject and partition. Nothing while a broker does not answer.

        The ends are asked for: those that the client knows from its fetches are old while a partition is paused.
        """
        found: defaultdict[str, dict[str, int]] = defaultdict(dict)
        try:
            for partition in self._turns:
                asked = TopicPartition(partition.topic, partition.number)
                _, end = consumer.get_watermark_offsets(asked, timeout=_END_S)
                if partition.position >= 0:
                    lag = max(end - partition.position, 0) + partition.unfinished
                    found[partition.subject][f"{partition.topic}-{partition.number}"] = lag
        except KafkaException:
            return {}
        return found

    @property
    def has_partitions(self) -> bool:
        """Whether this process owns partitions."""
        return bool(self._partitions)

    @property
    def unknown_ids(self) -> dict[str, str]:
        """The topics whose partitions wait for an id that the broker does not say, and why."""
        return self._topic_ids.unknown

    @property
    def has_unfinished(self) -> bool:
        """Whether received messages are not finished."""
        return any(partition.unfinished for partition in self._turns)

    def upkeep(self, consumer: KafkaConsumer) -> None:
        """Look up topic ids, find positions that were lost, commit if due, pause and resume partitions.

        Raises:
            AdapterError: the broker has lost records, and the worker must stop.
        """
        self._topic_ids.upkeep()
        self._say_begun_again()
        self._look_for_new_topics()
        for partition in self._resets.upkeep(consumer, self._turns):
            self._begin_again(partition).restart_at(partition.position)
        self._commit_if_due(consumer)
        self._regulate(consumer)

    def _regulate(self, consumer: KafkaConsumer) -> None:
        """Pause full partitions, and resume paused ones that are half empty."""
        share = 1 / max(len(self._turns), 1)
        full = [p for p in self._turns if not p.is_paused and p.fill(share) >= 1]
        drained = [p for p in self._turns if p.is_paused and p.fill(share) <= _HALF]
        try:
            if full:
                consumer.pause([TopicPartition(p.topic, p.number) for p in full])
            if drained:
                consumer.resume([TopicPartition(p.topic, p.number) for p in drained])
        except KafkaException as error:
            log.warning("pause_failed", extra={"error": error_of(error)})
            return
        for partition in (*full, *drained):
            partition.is_paused = not partition.is_paused

    # Commits

    def count_finished(self) -> None:
        self._finished += 1

    def _commit_if_due(self, consumer: KafkaConsumer) -> None:
        self._commits.upkeep(consumer)
        if self._commits.is_busy:
            return
        now = time.monotonic()
        is_old = self._finished > 0 and now - self._committed_at >= self._interval_s
        if is_old or self._finished >= self._every or now >= self._commits.retry_at:
            self._send(consumer)

    def commit_last(self, consumer: KafkaConsumer, timeout_s: float) -> None:
        """Commit and wait at most `timeout_s` for the answer; a synchronous commit waits longer without a broker."""
        until = time.monotonic() + timeout_s
        self._commits.wait(consumer, timeout_s)
        is_done = self._commits.is_busy
        while not is_done:
            self._send(consumer)
            self._commits.wait(consumer, until - time.monotonic())
            is_done = time.monotonic() < self._commits.retry_at or time.monotonic() > until

    def give_up(self, consumer: KafkaConsumer, deliveries: list[Delivery]) -> list[Delivery]:
        """Commit messages before their delivery, so that they are not delivered again. Empty if the commit fails."""
        first = [d.token for d in deliveries if d.token.record.turns == 1]
        ends: dict[Partition, int] = {}
        for token in first:
            ends[token.partition] = max(ends.get(token.partition, 0), token.record.offset + 1)
        if not ends or self._commits.commit(consumer, ends):
            return deliveries
        for delivery in deliveries:
            token = delivery.token
            if token.partition.take_back(token):
                token.record.turns -= 1
                token.partition.retry_at(token.record, 0.0)
        return []

    def in_turn(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Keep back those that no handler may run, before their turn: the store takes offsets in their order."""
        early = [delivery for delivery in deliveries if _is_early(delivery)]
        for delivery in early:
            token = delivery.token
            token.partition.take_back(token)
            token.partition.retry_at(token.record, time.monotonic() + _TURN_S)
        return [delivery for delivery in deliveries if delivery not in early] if early else deliveries

    def end(self) -> None:
        """End the epochs of all partitions."""
        self._end(list(self._turns))

    def _send(self, consumer: KafkaConsumer) -> None:
        self._finished = 0
        self._committed_at = time.monotonic()
        self._commits.retry_at = math.inf
        self._commits.start(consumer, _marks(self._turns))

    def _begin(self, names: Sequence[Name]) -> list[Partition]:
        ids = self._topic_ids.ask({topic for topic, _ in names})
        begun = [self._partition(ids[topic], number) for topic, number in names]
        self._end([self._partitions[name] for name in names if name in self._partitions])
        self._partitions.update(zip(names, begun, strict=True))
        self._turns.extend(begun)
        return begun

    def _partition(self, topic_id: TopicId, number: int) -> Partition:
        subject = self._retries.get(topic_id.topic)
        if subject is None:
            is_stored = self._stored.of(topic_id.topic)
            return Partition(topic_id, number, self._limits, topic_id.topic, is_stored=is_stored)
        # Delayed copies have lost their order already.
        return Partition(topic_id, number, replace(self._limits, ordering=Ordering.NONE), subject)

    def _end(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            partition.is_open = False
            del self._partitions[partition.topic, partition.number]
            self._turns.remove(partition)

    def _of(self, names: Sequence[TopicPartition]) -> list[Partition]:
        found = (self._partitions.get((tp.topic, tp.partition)) for tp in names)
        return [partition for partition in found if partition is not None]


def _is_early(delivery: Delivery) -> bool:
    partition = delivery.token.partition
    may_not_run = delivery.error is not None or delivery.only_for is not None
    return may_not_run and partition.is_stored and not partition.is_next(delivery.token.record)


def _named(partitions: Sequence[TopicPartition]) -> dict[str, list[str]]:
    return {"partitions": [f"{tp.topic}/{tp.partition}" for tp in partitions]}


def _marks(partitions: Iterable[Partition]) -> dict[Partition, int]:
    return {partition: mark for partition in partitions if (mark := partition.mark) is not None}
