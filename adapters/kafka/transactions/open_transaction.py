"""OpenTransaction: one Kafka transaction in progress."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias

from idempotent.adapters.kafka.client import (
    OF_THE_BATCH,
    OF_THE_TOPIC,
    KafkaError,
    KafkaException,
    Producer,
    error_of,
)
from idempotent.adapters.kafka.outputs import Output, Produced
from idempotent.adapters.kafka.partition import Partition

_Unsent: TypeAlias = tuple[Partition, Produced, Output]
NO_LIMIT: Final = sys.maxsize
_PATIENCE_S: Final = 20.0


class Step(Enum):
    """The phase a transaction is in."""

    BEGIN = "begin"
    PRODUCE = "produce"
    SEND_OFFSETS = "send_offsets"
    COMMIT = "commit"
    ABORT = "abort"
    LOOK = "look"
    """The outcome of the commit is unknown: the group's offsets tell."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An output that the broker refuses, in whatever transaction it is sent.

    Attributes:
        partition: where its input came from.
        reason: what the broker said.
        is_certain: the error is about this output; False: perhaps about another one that was sent with it.
    """

    partition: Partition
    reason: str
    is_certain: bool


@dataclass(slots=True, eq=False)
class OpenTransaction:
    """One Kafka transaction in progress.

    Attributes:
        marks: the offsets to commit, by partition.
        inputs: how many messages have outputs in it.
        is_whole: it commits all offsets that it was asked for.
        unsent: the outputs not yet handed to the client library, with their partitions and inputs.
        unreported: how many outputs are sent and not confirmed.
        has_failed: an output was not confirmed.
        error: the first error of an output.
        refusals: outputs that the broker refuses in any transaction, by input.
        member: this process's group metadata at the beginning. The broker refuses it after a rebalance.
        step: the next step.
        began: when the transaction began, by the adapter's clock.
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
    began: float = 0.0
    _since: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, marks: Mapping[Partition, int], most: int) -> OpenTransaction:
        """A transaction for these marks, reduced to the outputs of at most `most` messages."""
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
        """Whether all partitions are still assigned to this process."""
        return all(partition.is_open for partition in self.marks)

    @property
    def stands_still(self) -> bool:
        """Whether the step takes longer than with a broker that answers."""
        return time.monotonic() - self._since > _PATIENCE_S

    def begin(self, client: Producer, member: Any) -> None:
        """Begin the transaction as this member of the group.

        Raises:
            KafkaException: the client is broken.
        """
        self.member = member
        client.begin_transaction()
        self.began = time.monotonic()
        self.go_to(Step.PRODUCE)

    def go_to(self, step: Step) -> None:
        """Set the next step."""
        self.step = step
        self._since = time.monotonic()

    def produce(self, client: Producer) -> None:
        """Hand outputs to the client library until its queue is full.

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
        is_certain = isinstance(error, ValueError) or error.code() in OF_THE_TOPIC
        reason = f"Kafka refused an output for {output.topic}: {error_of(error)}"
        self.refusals.setdefault(produced, Refusal(partition, reason, is_certain))


def _blames(error: KafkaError) -> bool:
    return error.code() in OF_THE_TOPIC or error.code() in OF_THE_BATCH
