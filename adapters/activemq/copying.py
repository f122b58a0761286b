"""Copies: deliveries that are settled by a copy, on a connection that acknowledges nothing."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from idempotent.adapters.activemq.connection import StompConnection, Subscription
from idempotent.adapters.activemq.frames import Frame
from idempotent.adapters.activemq.lines import Line
from idempotent.adapters.activemq.refusals import CopyLostError, ForbiddenError, LostError, refusal
from idempotent.adapters.copies import UntakenCopies
from idempotent.adapters.reconnecting import describe
from idempotent.logs import EventLog
from idempotent.policy import Backoff

log = EventLog(__name__)

_COPY: Final = "a copy of a message"
_COPY_BACKOFF: Final = Backoff(initial_s=1.0, maximum_s=600.0)
_MOST_COPIES: Final = 10_000
_OVERDUE_S: Final = 60.0
CopyOf = Callable[[], Frame]
"""Makes the copy that replaces a message, at the time of sending."""


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A received message that is not acknowledged.

    Attributes:
        number: its place among all deliveries of the connection.
        subscription: that delivered it.
        frame: as received.
    """

    number: int
    subscription: Subscription
    frame: Frame

    @property
    def ack_id(self) -> str:
        """The id for the acknowledgement."""
        return self.frame.headers["ack"]

    @property
    def position(self) -> str:
        """The broker's id of the message, the same on every connection."""
        return self.frame.headers.get("message-id", "")


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """One delivery that is settled when the broker has confirmed its copy.

    Attributes:
        held: the original.
        make: makes the copy.
        due_at: when the message may be delivered again, in seconds of the monotonic clock.
        confirmed: acknowledges the original; raises LostError when its connection is lost.
    """

    held: Held
    make: CopyOf
    due_at: float
    confirmed: Callable[[], None]


class Copies:
    """Sends copies without waiting for them.

    A broker whose store is full stops reading from a connection that publishes. So copies share none with
    acknowledgements, and wait for room. One after the other, so that the one is known that costs a connection.

    Args:
        line: the connection.
        backoff: when a copy is tried again.
        keep: hands the original of a failed copy to the worker again, after so many seconds.
    """

    def __init__(self, line: Line, backoff: CopyBackoff, keep: Callable[[Held, float], None]) -> None:
        self._line = line
        self._backoff = backoff
        self._keep = keep
        self._waiting: deque[Copy] = deque()
        self._asked: tuple[StompConnection, str] | None = None
        self._target = ""
        """Where the copy goes that was asked for last."""

    def __len__(self) -> int:
        return len(self._waiting)

    def send(self, copy: Copy) -> None:
        """Send a copy when those before it are answered."""
        self._waiting.append(copy)
        self.upkeep()

    def upkeep(self) -> None:
        """Serve the connection, and acknowledge the originals of confirmed copies.

        Raises:
            LostError: the connection of an original is lost.
            AdapterError: the broker refuses copies for good.
        """
        while self._waiting or self._line.connection is not None:
            copy = self._next_confirmed()
            if copy is None:
                return
            copy.confirmed()

    def pause(self) -> None:
        """Wait a moment for the broker."""
        self._line.pause()

    def _next_confirmed(self) -> Copy | None:
        is_asked = self._asked is not None
        try:
            self._line.upkeep()
            connection = self._line.connection
            if not self._waiting or connection is None:
                return None
            if self._asked is None or self._asked[0] is not connection:
                is_asked = True
                frame = self._waiting[0].make()
                self._target = frame.headers["destination"]
                self._asked = connection, connection.ask(frame)
            answer = connection.answer(self._asked[1])
        except LostError as error:
            self._line.lose(error)
            if is_asked:
                self._fail(CopyLostError(error, {self._waiting[0].held.position: self._target}))
            return None
        if answer is None:
            return None
        if answer.command == "ERROR":
            self._fail(refusal(answer, _COPY))
            return None
        self._asked = None
        copy = self._waiting.popleft()
        self._backoff.copied(copy.held.position)
        return copy

    def _fail(self, error: Exception) -> None:
        self._asked = None
        if isinstance(error, ForbiddenError):
            raise error
        copy = self._waiting.popleft()
        position = copy.held.position
        self._backoff.failed({position: self._target}, error)
        self._keep(copy.held, max(self._backoff.wait_s(position), copy.due_at - time.monotonic()))


class CopyBackoff:
    """Waits between attempts to copy a message whose earlier copies were refused, or cost the connection.

    ActiveMQ ends the connection over a frame larger than its `maxFrameSize`, mostly without a reason, and a copy is
    larger than its original. Without a wait the redelivered message would end the next connection too, and with it
    the deliveries of other messages.

    Args:
        clock: seconds; injectable for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()
        # A message that has not come back when its time was over may have gone to another worker.
        self.untaken: Final = UntakenCopies[str](lambda position: self.wait_s(position, _OVERDUE_S) > 0)

    def failed(self, copies: Mapping[str, str], error: Exception) -> None:
        """Note that the copies of these messages were refused, or a connection was lost while they were sent.

        Args:
            copies: for the position of each message the destination of its copy.
            error: why.
        """
        for position, target in copies.items():
            self.untaken.refused(position, target, describe(error))
            count = self._known.pop(position, (0, 0.0))[0] + 1
            wait_s = _COPY_BACKOFF.delay_s(count)
            self._known[position] = (count, self._clock() + wait_s)
            log.error(
                "copy_failed",
                extra={
                    "position": position,
                    "target": target,
                    "error": describe(error),
                    "attempts": count,
                    "next_try_s": wait_s,
                },
            )
        while len(self._known) > _MOST_COPIES:
            self._known.popitem(last=False)

    def wait_s(self, position: str, more_s: float = 0.0) -> float:
        """Seconds until the next copy of the message may be sent, and so many more; 0 if that is over."""
        return max(self._known.get(position, (0, 0.0))[1] + more_s - self._clock(), 0.0)

    def copied(self, position: str) -> None:
        """Note that the broker confirmed a copy of the message."""
        self._known.pop(position, None)
        self.untaken.taken(position)
