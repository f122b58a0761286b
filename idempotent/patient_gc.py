"""Python's garbage collector, patient enough for messages on their way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# What one message is made of, from the broker's client to its result, with room for what a handler makes.
_OBJECTS_OF_ONE: Final = 64


@contextmanager
def patient_gc(messages: int) -> Iterator[None]:
    """Inside, objects that so many messages on their way keep alive start no collection.

    They all go when their messages are settled, without a collector. With the usual threshold, 700, a batch of 500
    starts a collection every 50 messages, most of what they look through is alive, and so it is passed on until
    Python looks through everything the application has, again and again: a third of a worker's processor time.

    An application that has chosen a higher threshold, or none, keeps it.

    Args:
        messages: the most that are on their way at once.
    """
    before = gc.get_threshold()
    wanted = _OBJECTS_OF_ONE * messages
    if not 0 < before[0] < wanted:
        yield
        return
    gc.set_threshold(wanted, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
