"""Handlers that take their time."""

import time


def slow_at_first(effects, seconds):
    """Slow after the first effect only, so that a process that repeats it is quick."""

    def handle(row):
        is_first = not effects.words
        effects.add(row["k"])
        if is_first:
            time.sleep(seconds)

    return handle
