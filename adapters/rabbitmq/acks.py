"""When acknowledgements are sent: each at once, or many with one word."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

from idempotent.adapters.watermark import Watermark

# How long a message that is done waits for a slow one before it, when one word could cover both.
_MOST_DELAY_S: Final = 1.0


class Acks(ABC):
    """The delivery tags of one channel, from their delivery to their acknowledgement."""

    @abstractmethod
    def delivered(self, tag: int) -> None:
        """The broker waits for a word on this one."""

    @abstractmethod
    def finish(self, tag: int) -> None:
        """Acknowledge it, now or soon."""

    @abstractmethod
    def give_back(self, tag: int) -> None:
        """Return it to its queue, now."""

    @property
    def due_in_s(self) -> float | None:
        """Seconds until `flush_due` has something to do; None: nothing waits."""
        return None

    def flush_due(self) -> None:  # noqa: B027 - nothing waits by default
        """Send what has waited long enough."""

    def flush(self) -> None:  # noqa: B027
        """Send all that waits."""


class EachAtOnce(Acks):
    """One `basic.ack` per message."""

    def __init__(self, channel: Any) -> None:
        """For one channel."""
        self._channel = channel

    def delivered(self, tag: int) -> None:
        pass

    def finish(self, tag: int) -> None:
        self._channel.basic_ack(tag)

    def give_back(self, tag: int) -> None:
        # Not basic.reject: from 4.3 on, that alone counts against a quorum queue's delivery limit.
        self._channel.basic_nack(tag, requeue=True)


class Batched(Acks):
    """One `basic.ack(multiple=True)` for all up to the first unfinished delivery.

    It is sent when `batch` are done, after `interval_s`, when the broker would send nothing more (`prefetch`), and
    when nothing is left to do. What a slow delivery keeps waiting for longer than a second is sent one by one.

    Args:
        channel: whose tags they are.
        batch: done deliveries that are worth a word.
        interval_s: the longest a done delivery waits for a batch to fill.
        prefetch: unacknowledged deliveries at which the broker stops.
        clock: seconds; injectable for tests.
    """

    def __init__(
        self,
        channel: Any,
        *,
        batch: int,
        interval_s: float,
        prefetch: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing delivered yet."""
        self._channel = channel
        self._batch = batch
        self._interval_s = interval_s
        self._prefetch = prefetch
        self._clock = clock
        self._open = 0
        self._mark: Watermark[int] = Watermark()
        # Done, but the broker does not know; in the order in which they were done, with the time.
        self._done: dict[int, float] = {}
        self._next_try = 0.0

    def delivered(self, tag: int) -> None:
        self._mark.add(tag)
        self._open += 1

    def finish(self, tag: int) -> None:
        if not self._mark.finish(tag):
            return
        self._open -= 1
        now = self._clock()
        if not self._done:
            self._next_try = now + self._interval_s
        self._done[tag] = now
        if self._is_full or not self._open or len(self._done) >= self._batch:
            self._send(one_by_one=self._is_full)

    def give_back(self, tag: int) -> None:
        if self._mark.finish(tag):
            self._open -= 1
            self._channel.basic_nack(tag, requeue=True)

    @property
    def due_in_s(self) -> float | None:
        if not self._done:
            return None
        return 0.0 if self._is_full else max(self._next_try - self._clock(), 0.0)

    def flush_due(self) -> None:
        if self.due_in_s == 0:
            self._send(one_by_one=self._is_full)

    def flush(self) -> None:
        self._send(one_by_one=True)

    @property
    def _is_full(self) -> bool:
        return self._open + len(self._done) >= self._prefetch

    def _send(self, *, one_by_one: bool) -> None:
        mark = self._mark.last
        covered = [tag for tag in self._done if mark is not None and tag <= mark]
        if covered:
            # Of those that still wait: the broker closes the channel over a tag that it does not know any more.
            self._channel.basic_ack(max(covered), multiple=True)
            for tag in covered:
                del self._done[tag]
        now = self._clock()
        for tag, since in list(self._done.items()):
            if one_by_one or now - since >= _MOST_DELAY_S:
                self._channel.basic_ack(tag)
                del self._done[tag]
        self._next_try = now + self._interval_s
