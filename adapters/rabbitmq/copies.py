"""Copies of deliveries: for later, for the dead-letter queue, or back to their queue."""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from idempotent.adapters.copies import dead_letter_headers, delayed_headers, fitting
from idempotent.adapters.rabbitmq.messages import properties_of
from idempotent.adapters.rabbitmq.publisher import NotTakenError, TooLargeError
from idempotent.adapters.rabbitmq.session import Session, Token
from idempotent.adapters.reconnecting import said
from idempotent.message import Message
from idempotent.outcomes import Result
from idempotent.policy import Backoff

log = logging.getLogger(__name__)

_AGAIN: Final = Backoff(initial_s=1.0, maximum_s=60.0)


class Goal(Enum):
    """Where a copy goes."""

    DELAY = "delay"
    DEAD_LETTER = "dead_letter"
    QUEUE = "queue"
    ORIGINAL = "original"
    """There can be no copy: the delivery itself goes back to its queue."""


@dataclass(slots=True)
class Copy:
    """One delivery that is settled by a confirmed copy.

    Attributes:
        message: as it was delivered.
        token: of the delivery, to be acknowledged afterwards.
        goal: where to.
        result: why.
        due: when a delayed one may come again, in seconds of the monotonic clock.
        refusals: how often the broker did not take it.
    """

    message: Message
    token: Token
    goal: Goal
    result: Result | None
    due: float
    refusals: int = 0

    def publish(self, session: Session) -> None:
        """Return when the broker has confirmed it.

        Raises:
            NotTakenError: the broker refuses it.
            AMQPError, OSError: the connection is lost.
        """
        queue, message = self.token.queue, self.message
        if self.goal is Goal.DEAD_LETTER:
            assert self.result is not None
            headers = fitting(
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
    """Makes copies, and keeps those that the broker refuses for another try: their originals stay unacknowledged.

    A delayed copy that is too large is not tried again: its original waits here, and is given back in time.

    Args:
        acknowledge: called with each token whose copy is confirmed.
        give_back: called with each token of a message that cannot be copied, when it is due.
        outlive: a copy is wanted even when the session of its original is over, because the original is gone.
    """

    def __init__(
        self, acknowledge: Callable[[Token], None], give_back: Callable[[Token], None], *, outlive: bool
    ) -> None:
        """None yet."""
        self._acknowledge = acknowledge
        self._give_back = give_back
        self._outlive = outlive
        self._refused: list[tuple[float, int, Copy]] = []
        self._ties = itertools.count()

    def __len__(self) -> int:
        """Copies that wait for another try."""
        return len(self._refused)

    def make(self, session: Session | None, copy: Copy) -> None:
        """Publish it, then acknowledge the original; or try again later.

        Raises:
            AMQPError, OSError: the connection is lost.
        """
        if copy.goal is Goal.ORIGINAL:
            self._give_back(copy.token)
            return
        if session is None:
            self._later(copy)
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
                extra={"goal": goal.value, "queue": copy.token.queue, "error": said(error)},
            )
            return
        except BaseException:
            # Not acknowledged, so the broker delivers it again; unless there is nothing left to deliver.
            if self._outlive:
                self._later(copy)
            raise
        self._acknowledge(copy.token)

    def try_again(self, session: Session, *, all_of_them: bool = False) -> None:
        """Make those that are due. Raises AMQPError or OSError when the connection is lost."""
        now = time.monotonic()
        for _ in range(len(self._refused)):
            if self._refused[0][0] > now and not all_of_them:
                return
            copy = heapq.heappop(self._refused)[2]
            if copy.token.session is session or self._outlive:
                self.make(session, copy)

    def _later(self, copy: Copy) -> None:
        self._push(copy, time.monotonic() + _AGAIN.delay_s(max(copy.refusals, 1)))

    def _push(self, copy: Copy, due: float) -> None:
        heapq.heappush(self._refused, (due, next(self._ties), copy))
