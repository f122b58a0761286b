"""Holding: a message whose key another call has is held for a time, and then looked at again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Final

from idempotent.outcomes import Outcome, Result

HELD: Final = (Outcome.IN_PROGRESS, Outcome.UNAVAILABLE)
"""Outcomes after which a message that nobody waits for comes again."""
LOOK_S: Final = 0.25
"""The shortest wait, in seconds: a call that only reads a key which is done holds it for a moment, in a transaction."""
_RETRY_AFTER_S: Final = 1.0
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 1.0
_GROWTH: Final = 1.5


def retry_after_s(result: Result, longest_s: float = _RETRY_AFTER_S) -> float:
    """Seconds after which a held message is to come again.

    A handler that is alive may end at any moment: the rest of its lease says nothing about that.
    """
    return min(result.retry_after_s or _RETRY_AFTER_S, longest_s)


def pauses(wait_s: float) -> Iterator[float]:
    """The pauses between the looks at a key that another call has, until `wait_s` seconds are over."""
    until = time.monotonic() + max(wait_s, LOOK_S)
    pause_s = _FIRST_PAUSE_S
    while (left_s := until - time.monotonic()) > 0:
        yield min(pause_s * random.uniform(0.5, 1), left_s)  # so that those who wait do not look all at once
        pause_s = min(pause_s * _GROWTH, _LONGEST_PAUSE_S)


def held(result: Result, process: Callable[[], Result], wait_s: float) -> Result:
    """What comes of a message in the end, which another call may have now.

    Args:
        result: what came of it.
        process: processes it again.
        wait_s: seconds that it waits for the other call; at least a quarter of one.
    """
    for pause_s in pauses(wait_s):
        if result.outcome is not Outcome.IN_PROGRESS:
            break
        time.sleep(pause_s)
        result = process()
    return result


async def held_async(
    result: Result,
    process: Callable[[], Awaitable[Result]],
    wait_s: float,
    outcomes: Collection[Outcome] = (Outcome.IN_PROGRESS,),
) -> Result:
    """The same for an `async def`; `outcomes`: those after which the message is held."""
    for pause_s in pauses(wait_s):
        if result.outcome not in outcomes:
            break
        await asyncio.sleep(pause_s)
        result = await process()
    return result
