"""CopyBackoff: messages whose copies cost the connection, and when to try the next copy."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from idempotent.logs import EventLog
from idempotent.policy import Backoff

log = EventLog(__name__)
_BACKOFF: Final = Backoff(initial_s=1.0, maximum_s=600.0)
_MOST: Final = 10_000


class CopyBackoff:
    """Waits between attempts to copy a message whose earlier copies cost the connection.

    ActiveMQ ends the connection over a frame larger than its `maxFrameSize`, mostly without a reason, and a copy is
    larger than its original. Without a wait the redelivered message would end the next connection too, and with it
    the deliveries of other messages.

    Args:
        clock: seconds; injectable for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def lost_over(self, positions: Sequence[str]) -> None:
        """Note that a connection was lost while copies of these messages were sent."""
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
        """Seconds until the next copy of the message may be sent; 0 if it may be sent now."""
        return max(self._known.get(position, (0, 0.0))[1] - self._clock(), 0.0)

    def copied(self, position: str) -> None:
        """Note that the broker confirmed a copy of the message."""
        self._known.pop(position, None)
