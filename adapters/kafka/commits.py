"""Commits: how offsets become the group's. OffsetCommits: by themselves; see `kafka_transactions` for the other way."""

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

log = logging.getLogger(__name__)
Marks = Mapping[Partition, int]
"""The offset to commit, by partition."""
RETRY_S: Final = 1.0
_ANSWER_S: Final = 30.0


class Commits(ABC):
    """Takes marks, one lot after the other, and sets `Partition.committed` to what it was told last.

    Belongs to the adapter's thread, and raises nothing: what cannot be committed is owed.
    """

    again_at: float = math.inf
    """When it wants to be told again, because something was not committed, by the adapter's clock."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether an answer is awaited; nothing may be started then."""

    @abstractmethod
    def start(self, consumer: KafkaConsumer, marks: Marks) -> None:
        """Commit; the answer comes later."""

    @abstractmethod
    def commit(self, consumer: KafkaConsumer, marks: Marks) -> bool:
        """Commit, and wait for the answer. Whether it is done."""

    @abstractmethod
    def upkeep(self, consumer: KafkaConsumer) -> None:
        """Go on with what was started."""

    @abstractmethod
    def wait(self, consumer: KafkaConsumer, timeout_s: float) -> None:
        """Wait until it is not busy, at most `timeout_s` seconds."""

    def on_commit(self, error: KafkaError | None, committed: Sequence[TopicPartition]) -> None:  # noqa: B027
        """The consumer's answer to a commit that nobody waited for."""

    @property
    def fault(self) -> str | None:
        """Why there is no going on, if there is none."""
        return None

    def _owe(self, marks: Marks, wait_s: float = RETRY_S) -> None:
        for partition in marks:
            partition.committed = -1
        self.again_at = time.monotonic() + wait_s


class OffsetCommits(Commits):
    """The consumer's own."""

    def __init__(self) -> None:
        """Nothing committed yet."""
        self._asked: dict[tuple[str, int], Partition] = {}
        self._asked_at: float | None = None

    @property
    def is_busy(self) -> bool:
        # One commit at a time: after a lost connection an older one may be sent again, behind a newer one.
        return self._asked_at is not None and time.monotonic() - self._asked_at < _ANSWER_S

    def start(self, consumer: KafkaConsumer, marks: Marks) -> None:
        self._asked = {(partition.topic, partition.number): partition for partition in marks}
        self._commit(consumer, marks, asynchronous=True)

    def commit(self, consumer: KafkaConsumer, marks: Marks) -> bool:
        return self._commit(consumer, marks, asynchronous=False)

    def upkeep(self, consumer: KafkaConsumer) -> None:
        """The consumer does that."""

    def wait(self, consumer: KafkaConsumer, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while self.is_busy and time.monotonic() < until:
            consumer.poll(0.02)

    def on_commit(self, error: KafkaError | None, committed: Sequence[TopicPartition]) -> None:
        self._asked_at = None
        for tp in committed:
            problem = error or tp.error
            if problem is None or problem.code() == KafkaError._NO_OFFSET:  # noqa: SLF001 - public, despite its name
                continue
            log.warning(
                "commit_failed",
                extra={"topic": tp.topic, "partition": tp.partition, "error": error_of(problem)},
            )
            partition = self._asked.get((tp.topic, tp.partition))
            if partition is not None:
                self._owe({partition: -1})

    def _commit(self, consumer: KafkaConsumer, marks: Marks, *, asynchronous: bool) -> bool:
        offsets = offsets_of(marks)
        try:
            if asynchronous:
                consumer.commit(offsets=offsets, asynchronous=True)
                self._asked_at = time.monotonic()
            else:
                _raise_if_refused(consumer.commit(offsets=offsets, asynchronous=False))
        except KafkaException as error:
            # They are the next owner's, or the next commit says it again.
            log.warning("commit_failed", extra={"error": error_of(error)})
            self._owe(marks)
            return False
        for partition, mark in marks.items():
            partition.committed = mark
        return True


def offsets_of(marks: Marks) -> list[TopicPartition]:
    """As the client library takes them."""
    return [TopicPartition(partition.topic, partition.number, mark) for partition, mark in marks.items()]


def _raise_if_refused(committed: Sequence[TopicPartition]) -> None:
    for tp in committed:
        if tp.error is not None:
            raise KafkaException(tp.error)
