"""When acknowledgements are sent, one for each message or one for many; and how many messages may be unsettled."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from idempotent.adapters.rabbitmq.options import Window
from idempotent.adapters.watermark import Watermark

# How long a finished message waits for a slow one before it, so that one acknowledgement can cover both.
_MOST_DELAY_S: Final = 1.0
# How long a window is full before it grows: a copy is usually confirmed sooner.
_PATIENCE_S: Final = 0.25
_MOST: Final = 1000
# A window that is emptied this often in that time is too small to keep the handlers busy.
_TURNS: Final = 2
_MOST_BUSY: Final = 200


class Acks(ABC):
    """The delivery tags of one channel, from their delivery to their acknowledgement."""

    @abstractmethod
    def delivered(self, tag: int) -> None:
        """The broker delivered this message and waits for its acknowledgement."""

    @abstractmethod
    def finish(self, tag: int) -> None:
        """Acknowledge a message, now or soon."""

    @abstractmethod
    def give_back(self, tag: int) -> None:
        """Return a message to its queue, now."""

    @property
    def due_in_s(self) -> float | None:
        """Seconds until `flush_due` has something to send; None if no acknowledgement waits."""
        return None

    def flush_due(self) -> None:  # noqa: B027 - only Batched waits
        """Send the acknowledgements that have waited long enough."""

    def flush(self) -> None:  # noqa: B027 - only Batched waits
        """Send all waiting acknowledgements."""


class EachAtOnce(Acks):
    """One `basic.ack` per message."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def delivered(self, tag: int) -> None:
        pass

    def finish(self, tag: int) -> None:
        self._channel.basic_ack(tag)

    def give_back(self, tag: int) -> None:
        # Not basic.reject: from 4.3 on, that alone counts against a quorum queue's delivery limit.
        self._channel.basic_nack(tag, requeue=True)


class Batched(Acks):
    """One `basic.ack(multiple=True)` for all deliveries before the first unfinished one.

    It is sent when `batch` deliveries are finished, after `interval_s`, when the broker stops sending (`prefetch`), and
    when no delivery is unfinished. Deliveries that wait longer than a second for a slow one are acknowledged alone.

    Args:
        channel: the channel of the delivery tags.
        batch: finished deliveries at which an acknowledgement is sent.
        interval_s: the longest that a finished delivery waits for a batch to fill.
        prefetch: unacknowledged deliveries at which the broker stops sending.
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
        self._channel = channel
        self._batch = batch
        self._interval_s = interval_s
        self._prefetch = prefetch
        self._clock = clock
        self._open = 0
        self._mark: Watermark[int] = Watermark()
        # Finished but not acknowledged tags, in the order in which they finished, with the time.
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
            # The greatest tag that still waits: the broker closes the channel over an acknowledged one.
            self._channel.basic_ack(max(covered), multiple=True)
            for tag in covered:
                del self._done[tag]
        now = self._clock()
        for tag, since in list(self._done.items()):
            if one_by_one or now - since >= _MOST_DELAY_S:
                self._channel.basic_ack(tag)
                del self._done[tag]
        self._next_try = now + self._interval_s


class Windows:
    """The prefetches of one channel, and the deliveries that occupy them.

    A delivery that waits for the owner of its key, or for the confirmation of its copy, occupies a place without
    occupying a handler. When such deliveries have filled the window of a queue, it needs another consumer. It needs one
    as well when the handlers are so fast that they wait for the broker; what is sent ahead then still runs soon.

    Args:
        window: the number at the beginning, and whether it grows.
    """

    def __init__(self, window: Window) -> None:
        self._grows = window.grows
        self._sizes: Counter[str] = Counter()
        self._works: dict[str, str] = {}
        self._queues: dict[int, str] = {}
        self._out: Counter[str] = Counter()
        self._full_since: dict[str, float] = {}
        self._settled: Counter[str] = Counter()
        self._counted_since = time.monotonic()

    def opened(self, queue: str, work: str, prefetch: int) -> None:
        """A consumer with this prefetch was added to a queue with messages of `work`."""
        self._sizes[queue] += prefetch
        self._works[queue] = work

    def delivered(self, queue: str, tag: int) -> None:
        """A delivery of a queue occupies a place."""
        if self._grows:
            self._queues[tag] = queue
            self._out[queue] += 1

    def settled(self, tag: int) -> None:
        """A delivery is acknowledged or returned."""
        queue = self._queues.pop(tag, None)
        if queue is not None:
            self._out[queue] -= 1
            self._settled[queue] += 1

    def full(self) -> Iterator[tuple[str, str, int]]:
        """The queues whose windows are too small, their work queues, and by how much to widen them.

        To be called when the worker has room and no delivery is available.
        """
        if not self._grows:
            return
        now = time.monotonic()
        settled: Counter[str] = Counter()
        if now - self._counted_since >= _PATIENCE_S:
            # After a longer time without a call the handlers were not waiting.
            if now - self._counted_since < 2 * _PATIENCE_S:
                settled = self._settled
            self._settled, self._counted_since = Counter(), now
        for queue, size in list(self._sizes.items()):
            if self._out[queue] < size:
                self._full_since.pop(queue, None)
                wanted = min(settled[queue] // _TURNS, _MOST_BUSY)
            elif size < _MOST and now - self._full_since.setdefault(queue, now) >= _PATIENCE_S:
                del self._full_since[queue]
                wanted = 2 * size
            else:
                continue
            if wanted > size:
                yield queue, self._works[queue], wanted - size
