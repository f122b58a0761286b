"""Python's garbage collector, relaxed enough for the messages in flight."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from idempotent.forks import free_in_child

# The objects of one message, from the broker's client to its result, with room for those of a handler.
_OBJECTS_OF_ONE: Final = 64

_lock: Final = free_in_child(threading.Lock())
_wanted: Final[list[int]] = []
_before: tuple[int, int, int] = gc.get_threshold()


@contextmanager
def relaxed_python_gc(messages: int) -> Iterator[None]:
    """Inside, the objects of this many messages in flight start no collection.

    They are freed by reference counting when their messages are settled. With the default threshold, 700, a batch of
    500 starts a collection every 50 messages, finds most objects alive, and moves them to older generations until
    Python examines all objects of the application again and again: a third of a worker's processor time.

    A higher threshold of the application, or 0 (off), is kept. Workers of one process share the highest.

    Args:
        messages: the most that are in flight at once.
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
