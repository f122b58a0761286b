"""How the processes of a test end, and what they did."""

import signal
import time

from idempotent import Message


def is_killed(child):
    return child.wait(150) == -signal.SIGKILL


def is_stopped(child):
    child.send_signal(signal.SIGTERM)
    return child.wait(150) == 0


def finish(place, subject, start, child):
    """Stop workers in order until the broker has nothing left: duplicates are settled too."""
    deadline = time.monotonic() + 120
    while True:
        assert is_stopped(child), child.err
        if place.left(subject) == 0:
            return
        assert time.monotonic() < deadline
        child = start(batch_size=20)
        while place.left(subject) and time.monotonic() < deadline:
            time.sleep(0.1)


def numbered(subject, count):
    return [Message(subject, b"x", id=f"m-{number}") for number in range(count)]


def ids(count):
    return sorted(f"m-{number}" for number in range(count))
