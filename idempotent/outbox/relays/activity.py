"""Activity: what the thread of a line does at the moment, and since when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum


class Doing(Enum):
    """What a line does."""

    WAITS = "waits"
    """For messages, or for the end of a pause."""
    STORE = "database"
    """It asks the database."""
    BROKER = "broker"
    """It waits for the broker."""


class Activity:
    """Written by the thread of a line, and read by others without a lock.

    Attributes:
        now: what it does, and since when, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.now = (Doing.WAITS, time.monotonic())

    @contextmanager
    def doing(self, what: Doing) -> Iterator[None]:
        """Inside, the thread does this; after it, what it did before."""
        before, _ = self.now
        self.now = (what, time.monotonic())
        try:
            yield
        finally:
            self.now = (before, time.monotonic())
