"""Python's garbage collector, patient enough for messages on their way."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# What one message is made of, from the broker's client to its result, with room for what a handler makes.
_OBJECTS_OF_ONE: Final = 64

_lock: Final = threading.Lock()
_wanted: Final[list[int]] = []
_before: tuple[int, int, int] = gc.get_threshold()


@contextmanager
def patient_gc(messages: int) -> Iterator[None]:
    """Inside, objects that so many messages on their way keep alive start no collection.

    They all go when their messages are settled, without a collector. With the usual threshold, 700, a batch of 500
    starts a collection every 50 messages, most of what they look through is alive, and so it is passed on until
    Python looks through everything the application has, again and again: a third of a worker's processor time.

    An application that has chosen a higher threshold, or none, keeps it. Workers of one process share the highest.

    Args:
        messages: the most that are on their way at once.
    """
    global _before  # noqa: PLW0603 - the threshold is one for the process
    wanted = _OBJECTS_OF_ONE * messages
    with _lock:
        if not _wanted:
            _before = gc.get_threshold()
        _wanted.append(wanted)
        _apply()
    try:
        yield
    finally:
        with _lock:
            _wanted.remove(wanted)
            _apply()


def _apply() -> None:
    first, *others = _before
    gc.set_threshold(max([first, *_wanted]) if first else first, *others)
