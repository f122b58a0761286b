"""Copies: deliveries that are settled by a copy in a delay queue, the dead-letter queue or their own queue."""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from dataclasses import dataclass
from enum import Enum
from typing import Final

from idempotent.adapters.copies import dead_letter_headers, delayed_headers, fit_headers
from idempotent.adapters.rabbitmq.messages import properties_of
from idempotent.adapters.rabbitmq.publisher import NotTakenError, TooLargeError
from idempotent.adapters.rabbitmq.session import Session, Token
from idempotent.adapters.reconnecting import describe
from idempotent.message import Message
from idempotent.outcomes import Result
from idempotent.policy import Backoff

log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(initial_s=1.0, maximum_s=60.0)


class Goal(Enum):
    """The destination of a copy."""

    DELAY = "delay"
    DEAD_LETTER = "dead_letter"
    QUEUE = "queue"
    ORIGINAL = "original"
    """A copy is impossible: the delivery itself returns to its queue."""


@dataclass(slots=True)
class Copy:
    """One delivery that is settled by a confirmed copy.

    Attributes:
        message: as it was delivered.
        token: of the delivery, acknowledged after the copy is confirmed.
        goal: the destination.
        result: the reason of a dead letter.
        due: when a delayed message may be delivered again, in seconds of the monotonic clock.
        refusals: how often the broker refused the copy.
    """

    message: Message
    token: Token
    goal: Goal
    result: Result | None
    due: float
    refusals: int = 0

    def publish(self, session: Session) -> None:
        """Send the copy, and return when the broker has confirmed it.

        Raises:
            NotTakenError: the broker refused the copy.
            AMQPError, OSError: the connection is lost.
        """
        queue, message = self.token.queue, self.message
        if self.goal is Goal.DEAD_LETTER:
            assert self.result is not None
            headers = fit_headers(
                dead_letter_headers(message, queue, self.result),
                lambda some: session.publisher.takes(properties_of(message, some)),
            )
            properties = properties_of(message, headers)
            session.publisher.to_dead_letters(queue, message.body, properties)
            return
        properties = properties_of(message, delayed_headers(message, queue))
        if self.goal is Goal.QUEUE:
            session.publisher.to_queue(queue, message.body, properties)
        else:
            delay_s = max(self.due - time.monotonic(), 0.0)
            session.publisher.to_delay(queue, delay_s, message.body, properties)


class Copies:
    """Sends copies, and retries those that the broker refuses; their originals stay unacknowledged.

    A delayed copy that is too large is not retried: its original waits here, and returns to its queue when it is due.

    Args:
        outlive: send copies also after the session of their original ended, because the original is acknowledged.
    """

    def __init__(self, *, outlive: bool) -> None:
        self._outlive = outlive
        self._refused: list[tuple[float, int, Copy]] = []
        self._ties = itertools.count()

    def __len__(self) -> int:
        """How many copies wait for another attempt."""
        return len(self._refused)

    def make(self, session: Session | None, copy: Copy) -> None:
        """Send a copy, then acknowledge the original. A refused copy is sent again later.

        Raises:
            AMQPError, OSError: the connection is lost.
        """
        if session is None:
            self._later(copy)
            return
        if copy.goal is Goal.ORIGINAL:
            session.give_back(copy.token.tag)
            return
        goal = copy.goal
        try:
            copy.publish(session)
        except NotTakenError as error:
            copy.refusals += 1
            if isinstance(error, TooLargeError) and copy.goal is Goal.DELAY and not self._outlive:
                copy.goal = Goal.ORIGINAL
                self._push(copy, copy.due)
            else:
                self._later(copy)
            log.error(  # noqa: TRY400 - the reason is in the message
                "copy_refused",
                extra={"goal": goal.value, "queue": copy.token.queue, "error": describe(error)},
            )
            return
        except BaseException:
            # The broker delivers the unacknowledged original again; with `outlive` it was acknowledged already.
            if self._outlive:
                self._later(copy)
            raise
        if copy.token.session is session:
            session.acknowledge(copy.token.tag)

    def retry_due(self, session: Session, *, also_early: bool = False) -> None:
        """Send the refused copies that are due. Raises AMQPError or OSError when the connection is lost."""
        now = time.monotonic()
        for _ in range(len(self._refused)):
            if self._refused[0][0] > now and not also_early:
                return
            copy = heapq.heappop(self._refused)[2]
            if copy.token.session is session or self._outlive:
                self.make(session, copy)

    def _later(self, copy: Copy) -> None:
        self._push(copy, time.monotonic() + _BACKOFF.delay_s(max(copy.refusals, 1)))

    def _push(self, copy: Copy, due: float) -> None:
        heapq.heappush(self._refused, (due, next(self._ties), copy))
