"""Commits: commits offsets. OffsetCommits does it without transactions; `Transactions` is the other way."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from idempotent.adapters.kafka.client import (
    KafkaConsumer,
    KafkaError,
    KafkaException,
    TopicPartition,
    error_of,
)
from idempotent.adapters.kafka.partition import Partition
from idempotent.logs import EventLog

log = EventLog(__name__)
Marks = Mapping[Partition, int]
"""The offset to commit, by partition."""
BEGUN: Final = "idempotent"
"""The metadata of a commit by a group that has begun the topic: a partition without an offset is new then."""
RETRY_S: Final = 1.0
_ANSWER_S: Final = 30.0
# Expected in every rebalance: the commit is repeated, or the messages belong to another member.
_REBALANCING: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001 - public, despite its name
    }
)


class Commits(ABC):
    """Commits those of the marks that are above `Partition.committed`, one set after the other.

    What the broker has confirmed is not repeated, because the topic may have been created again since; and no offset is
    set back. Belongs to the adapter's thread, and does not raise: a failed commit is due again at `retry_at`.
    """

    retry_at: float = math.inf
    """When the next commit is due because one failed, by the adapter's clock."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether a commit is in progress; `start` must not be called then."""

    @abstractmethod
    def start(self, consumer: KafkaConsumer, marks: Marks) -> None:
        """Start a commit; the answer arrives later."""

    @abstractmethod
    def commit(self, consumer: KafkaConsumer, marks: Marks) -> bool:
        """Commit, and wait for the answer. False: it failed."""

    @abstractmethod
    def upkeep(self, consumer: KafkaConsumer) -> None:
        """Continue the commit in progress."""

    @abstractmethod
    def wait(self, consumer: KafkaConsumer, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds for the commit in progress."""

    def on_commit(self, error: KafkaError | None, committed: Sequence[TopicPartition]) -> None:  # noqa: B027
        """The consumer's callback for an asynchronous commit."""

    @property
    def fault(self) -> str | None:
        """Why the worker must stop; None if it need not."""
        return None

    def _owe(self, wait_s: float = RETRY_S) -> None:
        self.retry_at = time.monotonic() + wait_s


class OffsetCommits(Commits):
    """Commits through the consumer."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], Partition] = {}
        self._asked_at: float | None = None

    @property
    def is_busy(self) -> bool:
        # One commit at a time: after a lost connection the client may resend an older one after a newer one.
        return self._asked_at is not None and time.monotonic() - self._asked_at < _ANSWER_S

    def start(self, consumer: KafkaConsumer, marks: Marks) -> None:
        new = new_of(marks)
        self._asked = {(partition.topic, partition.number): partition for partition in new}
        self._commit(consumer, new, asynchronous=True)

    def commit(self, consumer: KafkaConsumer, marks: Marks) -> bool:
        return self._commit(consumer, new_of(marks), asynchronous=False)

    def upkeep(self, consumer: KafkaConsumer) -> None:
        """The consumer needs none."""

    def wait(self, consumer: KafkaConsumer, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while self.is_busy and time.monotonic() < until:
            consumer.poll(0.02)

    def on_commit(self, error: KafkaError | None, committed: Sequence[TopicPartition]) -> None:
        self._asked_at = None
        for tp in committed:
            partition = self._asked.get((tp.topic, tp.partition))
            problem = error or tp.error
            if problem is None or problem.code() == KafkaError._NO_OFFSET:  # noqa: SLF001 - public, despite its name
                if partition is not None:
                    partition.committed = tp.offset
                continue
            log.log(
                level_of(problem),
                "commit_failed",
                extra={"topic": tp.topic, "partition": tp.partition, "error": error_of(problem)},
            )
            if partition is not None:
                self._owe()

    def _commit(self, consumer: KafkaConsumer, marks: Marks, *, asynchronous: bool) -> bool:
        if not marks:
            return True
        offsets = offsets_of(marks)
        try:
            if asynchronous:
                consumer.commit(offsets=offsets, asynchronous=True)
                self._asked_at = time.monotonic()
                return True
            raise_if_refused(consumer.commit(offsets=offsets, asynchronous=False))
        except KafkaException as error:
            # The next commit repeats these offsets, or the partitions have another owner.
            log.log(level_of(error.args[0]), "commit_failed", extra={"error": error_of(error)})
            self._owe()
            return False
        for partition, mark in marks.items():
            partition.committed = mark
        return True


def new_of(marks: Marks) -> dict[Partition, int]:
    """The marks above what the broker has confirmed."""
    return {partition: mark for partition, mark in marks.items() if mark > partition.committed}


def offsets_of(marks: Marks) -> list[TopicPartition]:
    """The marks as the client library's objects."""
    return [
        TopicPartition(
            partition.topic,
            partition.number,
            mark,
            metadata=BEGUN if partition.has_begun_topic else "",
            leader_epoch=partition.epoch_before(mark),
        )
        for partition, mark in marks.items()
    ]


def level_of(problem: KafkaError) -> int:
    """The level at which a failed commit is logged."""
    return logging.INFO if problem.code() in _REBALANCING else logging.WARNING


def raise_if_refused(committed: Sequence[TopicPartition]) -> None:
    """Raise the error of a partition, which the client library only notes beside its offset."""
    for tp in committed:
        if tp.error is not None:
            raise KafkaException(tp.error)
