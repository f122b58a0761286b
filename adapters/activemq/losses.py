"""Losses: messages whose copies cost the connection, and when one may be tried again."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from idempotent.policy import Backoff

log = logging.getLogger(__name__)
_BACKOFF: Final = Backoff(initial_s=1.0, maximum_s=600.0)
_MOST: Final = 10_000


class Losses:
    """Waits between the attempts to copy a message over which connections were lost.

    ActiveMQ ends the connection over a frame that is larger than its `maxFrameSize`, mostly without saying so, and a
    copy is larger than its original. Without a wait the message would come back with the next connection, and end
    that as well, with everything else that it delivered.

    Args:
        clock: seconds; injectable for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """None yet."""
        self._clock = clock
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def lost_over(self, positions: Sequence[str]) -> None:
        """A connection was lost while the copies of these were sent."""
        for position in positions:
            count = self._known.pop(position, (0, 0.0))[0] + 1
            wait_s = _BACKOFF.delay_s(count)
            self._known[position] = (count, self._clock() + wait_s)
            log.error(
                "copy_failed",
                extra={
                    "position": position,
                    "error": "the connection was lost over it; is it larger than the broker's maxFrameSize?",
                    "attempts": count,
                    "next_try_s": wait_s,
                },
            )
        while len(self._known) > _MOST:
            self._known.popitem(last=False)

    def wait_s(self, position: str) -> float:
        """Seconds until a copy of it may be tried; 0: now."""
        return max(self._known.get(position, (0, 0.0))[1] - self._clock(), 0.0)

    def copied(self, position: str) -> None:
        """The broker has its copy."""
        self._known.pop(position, None)
