"""Holding: what becomes of a message whose key another call has.

*Held* is said of what waits, and goes on by itself. A delivery is held: whoever received it keeps it unacknowledged,
and looks at its key again. A key is held: nobody may claim it before the backoff of a failure is over. A message in an
outbox is held: a broker refuses it, or one before it (the option of a relay says `on_parked`). *Parked* is a key whose
effect is unknown, by `on_expired_lease="park"` or `on_cancel="park"`: it is DEAD until a person decides.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Final

from idempotent.outcomes import HOLD, Outcome, Result

HELD: Final = tuple(outcome for outcome in Outcome if outcome.action is HOLD)
"""Outcomes after which a delivery is held, or what a framework delivered is sent again."""
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


def repeat_while_held(process: Callable[[], Result], wait_s: float) -> Result:
    """Process a message, and again while another call has its key, until the time is over. Returns the last result.

    Args:
        process: processes it.
        wait_s: seconds that it waits for the other call; at least a quarter of one.
    """
    result = process()
    for pause_s in pauses(wait_s):
        if result.outcome is not Outcome.IN_PROGRESS:
            break
        time.sleep(pause_s)
        result = process()
    return result


async def repeat_while_held_async(
    process: Callable[[], Awaitable[Result]],
    wait_s: float,
    outcomes: Collection[Outcome] = (Outcome.IN_PROGRESS,),
) -> Result:
    """The same for an `async def`; `outcomes`: those after which the message is held."""
    result = await process()
    for pause_s in pauses(wait_s):
        if result.outcome not in outcomes:
            break
        await asyncio.sleep(pause_s)
        result = await process()
    return result
