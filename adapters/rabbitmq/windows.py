"""Windows: how many deliveries of each queue the broker may send ahead."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from idempotent.adapters.rabbitmq.options import Window

# How long a window is full before it grows: a copy is usually confirmed sooner.
_PATIENCE_S: Final = 0.25
_MOST_WINDOW: Final = 1000
# What has waited for a handler that long was sent too far ahead. Fast handlers take a full window in a fraction of it.
_LONGEST_S: Final = 1.0
# A window that is emptied this often in that time is too small to keep the handlers busy.
_TURNS: Final = 2
_MOST_BUSY: Final = 200


class Windows:
    """The prefetches of one channel, and the deliveries that occupy them.

    A delivery that waits for the owner of its key, or for the confirmation of its copy, occupies a place without
    occupying a handler. When such deliveries have filled the window of a queue, it needs another consumer. It needs one
    as well when the handlers are so fast that they wait for the broker; what is sent ahead then still runs soon. When
    it does not, the window becomes as small as it was: another worker may have time for what waits here.

    Args:
        window: the number at the beginning, and whether it grows.
    """

    def __init__(self, window: Window) -> None:
        self._grows = window.grows
        self._first = window.prefetch
        self._too_large: set[str] = set()
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

    def closed(self, queue: str) -> None:
        """A queue has no consumer any more."""
        self._sizes.pop(queue, None)
        self._full_since.pop(queue, None)
        self._too_large.discard(queue)

    def delivered(self, queue: str, tag: int) -> None:
        """A delivery of a queue occupies a place."""
        if self._grows:
            self._queues[tag] = queue
            self._out[queue] += 1

    def taken(self, queue: str, waited_s: float) -> None:
        """Note that a delivery waited `waited_s` seconds for the worker: after a long wait its window is too large."""
        if waited_s > _LONGEST_S and self._sizes[queue] > self._first:
            self._too_large.add(queue)

    def too_large(self) -> Collection[str]:
        """The queues whose consumers have to be cancelled, but the first one of each."""
        return tuple(self._too_large)

    def shrunk(self, queue: str) -> None:
        """A queue has its first consumer alone."""
        self._sizes[queue] = self._first
        self._too_large.discard(queue)

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
            elif size < _MOST_WINDOW and now - self._full_since.setdefault(queue, now) >= _PATIENCE_S:
                del self._full_since[queue]
                wanted = 2 * size
            else:
                continue
            if wanted > size:
                yield queue, self._works[queue], wanted - size
