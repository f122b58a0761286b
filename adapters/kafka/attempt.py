"""Attempt: one transaction, from its beginning to the answer."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias

from idempotent.adapters.kafka.client import KafkaError, KafkaException, Producer, error_of
from idempotent.adapters.kafka.outputs import Output, Produced
from idempotent.adapters.kafka.partition import Partition

_Unsent: TypeAlias = tuple[Partition, Produced, Output]
NO_LIMIT: Final = sys.maxsize
_PATIENCE_S: Final = 20.0
# A batch is refused as a whole for one record of it. What names a topic names the culprit.
_OF_THE_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - public, despite its name
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
_OF_THE_BATCH: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)


class Step(Enum):
    """What comes next."""

    BEGIN = "begin"
    PRODUCE = "produce"
    SEND_OFFSETS = "send_offsets"
    COMMIT = "commit"
    ABORT = "abort"
    LOOK = "look"
    """Nobody knows whether it was committed: the group's offsets say it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the broker takes an output in no transaction, and whether it was surely this one that it meant."""

    partition: Partition
    reason: str
    is_certain: bool


@dataclass(slots=True, eq=False)
class Attempt:
    """A transaction that is on its way.

    Attributes:
        marks: the offsets to commit, by partition.
        inputs: how many messages its outputs are of.
        is_whole: it commits all that it was asked for.
        unsent: the outputs that the client library has not taken yet, with their partitions and inputs.
        unreported: outputs on their way.
        has_failed: one was not taken, for whatever reason.
        error: what was said first of one that was not taken.
        refusals: why outputs are taken in no transaction, by input.
        member: what the group called this process when it began. The broker refuses it after any rebalance.
        step: what comes next.
    """

    marks: dict[Partition, int]
    inputs: int
    is_whole: bool
    unsent: deque[_Unsent]
    unreported: int = 0
    has_failed: bool = False
    error: KafkaError | None = None
    refusals: dict[Produced, Refusal] = field(default_factory=dict)
    member: Any = None
    step: Step = Step.BEGIN
    _since: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, marks: Mapping[Partition, int], most: int) -> Attempt:
        """One that commits these marks, or as much of them as has the outputs of `most` messages."""
        portion: dict[Partition, int] = {}
        unsent: deque[_Unsent] = deque()
        left = most
        for partition, mark in marks.items():
            ready = partition.outputs.before(mark)
            portion[partition] = mark if len(ready) <= left else ready[left].offset
            for produced in ready[:left]:
                unsent.extend((partition, produced, output) for output in produced.outputs)
            left -= min(left, len(ready))
        return cls(portion, most - left, portion == dict(marks), unsent)

    @property
    def is_open(self) -> bool:
        """Whether all its partitions still are this process's."""
        return all(partition.is_open for partition in self.marks)

    @property
    def stands_still(self) -> bool:
        """Whether its step takes longer than it should with a broker that answers."""
        return time.monotonic() - self._since > _PATIENCE_S

    def go_to(self, step: Step) -> None:
        """Take that step next."""
        self.step = step
        self._since = time.monotonic()

    def produce(self, client: Producer) -> None:
        """Hand over outputs, as many as the client library takes now.

        Raises:
            KafkaException: the client is broken.
        """
        while self.unsent and not self.has_failed:
            one = self.unsent[0]
            output = one[2]
            try:
                client.produce(
                    output.topic,
                    output.value,
                    output.key,
                    headers=output.headers,  # type: ignore[arg-type]
                    on_delivery=partial(self._report, one),
                )
            except BufferError:
                return
            except KafkaException as error:
                if not _blames(problem := error.args[0]):
                    raise
                self._refuse(one, problem)
                return
            except ValueError as error:  # a NUL in the topic's name
                self._refuse(one, error)
                return
            self.unsent.popleft()
            self.unreported += 1

    def _report(self, one: _Unsent, error: KafkaError | None, _: Any) -> None:
        self.unreported -= 1
        if error is not None:
            self.has_failed = True
            self.error = self.error or error
            if _blames(error):
                self._refuse(one, error)

    def _refuse(self, one: _Unsent, error: KafkaError | ValueError) -> None:
        self.has_failed = True
        partition, produced, output = one
        is_certain = isinstance(error, ValueError) or error.code() in _OF_THE_TOPIC
        reason = f"Kafka does not take an output for {output.topic}: {error_of(error)}"
        self.refusals.setdefault(produced, Refusal(partition, reason, is_certain))


def _blames(error: KafkaError) -> bool:
    return error.code() in _OF_THE_TOPIC or error.code() in _OF_THE_BATCH
