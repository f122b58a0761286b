"""Condition: what a destination does at the moment, and why it waits. Its log lines about outages."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

from idempotent.errors import described
from idempotent.logs import EventLog
from idempotent.observe.log_lines import LogThrottle

log = EventLog(__name__)

# What differs from one error of the same cause to the next: ids, counts, ports.
_DETAILS: Final = re.compile(r"[0-9a-fA-F-]{8,}|\d+")


class Doing(Enum):
    """What a destination does."""

    WAITS = "waits"
    """For messages, or for the end of a pause."""
    STORE = "database"
    """It asks the database."""
    BROKER = "broker"
    """It waits for the broker."""


class Condition:
    """Written by the thread of a destination, and read by others without a lock.

    Args:
        destination: the name of the broker.

    Attributes:
        now: what it does, and since when, by the monotonic clock.
    """

    def __init__(self, destination: str) -> None:
        self.now = (Doing.WAITS, time.monotonic())
        self._destination: Final = destination
        self._told = LogThrottle()
        self._cause = ""
        self._lasts = False
        self._hangs: LogThrottle | None = None

    @contextmanager
    def doing(self, what: Doing) -> Iterator[None]:
        """Inside, the thread does this; after it, what it did before."""
        before, _ = self.now
        self.now = (what, time.monotonic())
        try:
            yield
        finally:
            self.now = (before, time.monotonic())

    def tell(self, error: Exception) -> None:
        """Say why the relay waits. Another cause is told at once."""
        self._lasts = True
        text = described(error)
        cause = _DETAILS.sub("", text)
        if cause != self._cause:
            self._told, self._cause = LogThrottle(), cause
        more = self._told.take()
        if more is not None:
            log.warning("relay_waits", extra={"destination": self._destination, "error": text, "more": more})

    def tell_hang(self, server: str, waited_s: float) -> None:
        """Say, from another thread, that it waits long for one answer, unless it has said why it waits."""
        if self._lasts:
            return
        if self._hangs is None:
            self._hangs = LogThrottle()
        if self._hangs.take() is not None:
            about = {"destination": self._destination, "server": server, "waited_s": round(waited_s)}
            log.warning("relay_hangs", extra=about)

    def end(self) -> None:
        """Say that it goes on, if it waited."""
        if self._lasts or self._hangs is not None:
            self._told, self._lasts, self._hangs = LogThrottle(), False, None
            log.warning("relay_goes_on", extra={"destination": self._destination})
