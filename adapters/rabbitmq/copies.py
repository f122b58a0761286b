"""Copies: deliveries that are settled by a copy in a delay queue, the dead-letter queue or their own queue."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from idempotent.adapters.copies import UntakenCopies, dead_letter_headers, delayed_headers, fit_headers
from idempotent.adapters.rabbitmq.messages import ours_of, properties_of_copy
from idempotent.adapters.rabbitmq.publish_channels import Item, NotTakenError, PublishBatch, TooLargeError
from idempotent.adapters.rabbitmq.publisher import Publisher, item_for, takes
from idempotent.adapters.rabbitmq.session import Session, Token
from idempotent.adapters.rabbitmq.topology import Topology
from idempotent.adapters.reconnecting import describe
from idempotent.errors import AdapterError
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.observe.log_lines import about_message
from idempotent.outcomes import Result
from idempotent.policy import Backoff

log = EventLog(__name__)

_BACKOFF: Final = Backoff(initial_s=1.0, maximum_s=60.0)


class CopyTarget(Enum):
    """The destination of a copy."""

    DELAY = "delay"
    DEAD_LETTER = "dead_letter"
    QUEUE = "queue"
    ORIGINAL = "original"
    """A copy is impossible: the delivery itself returns to its queue."""


@dataclass(slots=True, eq=False)
class Copy:
    """One delivery that is settled by a confirmed copy.

    Attributes:
        message: as it was delivered.
        token: of the delivery, acknowledged after the copy is confirmed.
        target: the destination.
        result: the reason of a dead letter.
        due: when a delayed message may be delivered again, in seconds of the monotonic clock.
        refusals: how often the broker refused the copy.
    """

    message: Message
    token: Token
    target: CopyTarget
    result: Result | None
    due: float
    refusals: int = 0

    def item(self, topology: Topology) -> Item:
        """The message to publish, and where to.

        Raises:
            NotTakenError: it cannot be published.
        """
        queue, message = self.token.queue, self.message
        if self.target is CopyTarget.DEAD_LETTER:
            assert self.result is not None
            place = topology.dead_place(queue)
            letter = dead_letter_headers(message, ours_of(message, queue), place.queue, queue, self.result)
            headers = fit_headers(
                {**message.headers, **letter}, lambda some: takes(properties_of_copy(message, some))
            )
            return item_for(place, message.body, properties_of_copy(message, headers))
        ours = ours_of(message, queue)
        if self.target is CopyTarget.QUEUE:
            # The same message, which nobody has tried in between.
            properties = properties_of_copy(message, {**message.headers, **ours})
            return item_for(topology.work_place(queue), message.body, properties)
        delayed = delayed_headers(message, ours, queue, queue)
        properties = properties_of_copy(message, {**message.headers, **delayed})
        delay_s = max(self.due - time.monotonic(), 0.0)
        return item_for(topology.delay_place(queue, delay_s), message.body, properties)


class Copies:
    """Sends copies without waiting for them, acknowledges the originals of confirmed ones, retries refused ones.

    The originals stay unacknowledged meanwhile. A delayed copy that is too large is not retried: its original waits
    here, and returns to its queue when it is due.

    Args:
        publisher: sends them.
        topology: knows where to.
        outlive: send copies also after the session of their original ended, because the original is acknowledged.
        current: the present session; None while disconnected.
    """

    def __init__(
        self,
        publisher: Publisher,
        topology: Topology,
        *,
        outlive: bool,
        current: Callable[[], Session | None],
    ) -> None:
        self._publisher = publisher
        self._topology = topology
        self._outlive = outlive
        self._current = current
        self._sent: dict[Copy, None] = {}
        self._refused: list[tuple[float, int, Copy]] = []
        self.untaken: Final = UntakenCopies[Copy](self._is_wanted)
        self._ties = itertools.count()

    def __len__(self) -> int:
        """How many copies are not confirmed yet."""
        return len(self._sent) + len(self._refused)

    @property
    def sent(self) -> int:
        """How many copies the publisher has."""
        return len(self._sent)

    def make(self, copy: Copy) -> None:
        """Send a copy; `settle` acknowledges its original. Returns at once."""
        try:
            item = copy.item(self._topology)
        except NotTakenError as error:
            self._refuse(copy, error)
            return
        self._sent[copy] = None
        self._publisher.send(
            PublishBatch([item], wanted=lambda: self._is_wanted(copy), copy=copy), channel=item.place.queue
        )

    def settle(self) -> None:
        """Acknowledge the originals of confirmed copies, and send the refused copies that are due.

        Raises:
            AMQPError, OSError: the consuming connection is lost.
        """
        for batch in self._publisher.finished():
            copy: Copy = batch.copy
            self._sent.pop(copy, None)
            if batch.error is None:
                self.untaken.taken(copy)
            if not self._is_wanted(copy):
                continue
            if batch.error is not None:
                self._refuse(copy, batch.error)
            elif (session := self._current()) is copy.token.session and session is not None:
                session.acknowledge(copy.token.tag)
        self.retry_due()

    def retry_due(self, *, also_early: bool = False) -> None:
        """Send the refused copies that are due. Raises AMQPError or OSError when the connection is lost."""
        now = time.monotonic()
        for _ in range(len(self._refused)):
            if self._refused[0][0] > now and not also_early:
                return
            copy = heapq.heappop(self._refused)[2]
            if not self._is_wanted(copy):
                continue
            if copy.target is CopyTarget.ORIGINAL:
                copy.token.session.give_back(copy.token.tag)
            else:
                self.make(copy)

    def _is_wanted(self, copy: Copy) -> bool:
        # The broker delivers the unacknowledged originals of another session again.
        return self._outlive or copy.token.session is self._current()

    def _refuse(self, copy: Copy, error: AdapterError) -> None:
        log.error(
            "copy_refused",
            extra={
                **about_message(copy.message),
                "goal": copy.target.value,
                "queue": copy.token.queue,
                "error": describe(error),
            },
        )
        queue = copy.token.queue
        target = self._topology.dead(queue) if copy.target is CopyTarget.DEAD_LETTER else queue
        self.untaken.refused(copy, target, describe(error))
        copy.refusals += 1
        due = time.monotonic() + _BACKOFF.delay_s(copy.refusals)
        if isinstance(error, TooLargeError) and copy.target is CopyTarget.DELAY and not self._outlive:
            self.untaken.taken(copy)
            copy.target = CopyTarget.ORIGINAL
            due = copy.due
        heapq.heappush(self._refused, (due, next(self._ties), copy))
