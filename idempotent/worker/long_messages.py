"""LongMessages: finds the messages of a worker that take very long, perhaps for ever."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from idempotent.consumer import AnyConsumer
from idempotent.processing.calling import RETURNED
from idempotent.processing.runs import runs
from idempotent.worker.handlers import HandlerPool
from idempotent.worker.holds import InFlightDelivery
from idempotent.worker.message_log import MessageLog

_LOOK_EVERY_S: Final = 1.0
_LONG_S: Final = 60.0
# Nothing else begins meanwhile.
_LONG_ALONE_S: Final = 5.0


class LongMessages:
    """Logs a message whose handler runs for a minute, and then each time that has doubled.

    One that is to run alone is logged after five seconds, which include those in which it waits for other handlers.

    Args:
        pool: runs the handlers.
        messages: logs the messages.

    Attributes:
        count: handlers that took long at the last `look`: a minute, or five seconds while they keep others from
            beginning. A batch handler counts as one.
    """

    def __init__(self, pool: HandlerPool, messages: MessageLog) -> None:
        """Look at nothing yet."""
        self.count = 0
        self._pool = pool
        self._log = messages
        self._next = 0.0

    def look(self) -> None:
        """Look at what runs, once a second at most."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOOK_EVERY_S
            self.count = sum(self._is_long(works, now) for works in self._by_handler())

    def _by_handler(self) -> Iterator[list[InFlightDelivery]]:
        """The works that each handler has: one, or those of a batch handler."""
        batches: defaultdict[tuple[AnyConsumer, float], list[InFlightDelivery]] = defaultdict(list)
        for work in self._pool.running:
            began = work.began
            if began is None or not work.consumer.handler.batch:
                yield [work]
            else:
                batches[work.consumer, began].append(work)
        yield from batches.values()

    def _is_long(self, works: list[InFlightDelivery], now: float) -> bool:
        first = works[0]
        began, blocks_s = first.began, runs.blocked_s(first.delivery.message)
        running_s = None if began is None or began == RETURNED else now - began
        takes_s, long_s = (running_s, _LONG_S) if blocks_s is None else (blocks_s, _LONG_ALONE_S)
        if takes_s is None or takes_s < long_s:
            return False
        doubled = 1 + int(math.log2(takes_s / long_s))
        if doubled > first.warnings:
            first.warnings = doubled
            self._log.takes_long(works, running_s, blocks_s)
        return True
