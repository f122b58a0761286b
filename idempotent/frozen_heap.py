"""The application's own objects, out of the way of Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Inside, no collection looks through what existed before.

    Messages on their way outlive a few collections, and so many make Python look through everything again and again:
    every module, every cache of the application. That was a third of a worker's processor time. What is garbage
    already is freed a little later, at the end. An application that has called `gc.freeze()` itself is left alone.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
