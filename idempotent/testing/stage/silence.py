"""Silence: how long a count has not changed."""

from __future__ import annotations

import time


class Silence:
    """Measures from the last change of a count, or from the last `restart`."""

    def __init__(self) -> None:
        """Begin now."""
        self._count = -1
        self._since = time.monotonic()

    def seconds(self, count: int) -> float:
        """Seconds since the count changed."""
        if count != self._count:
            self._count = count
            self.restart()
        return time.monotonic() - self._since

    def restart(self) -> None:
        """Measure from now, as if the count had changed."""
        self._since = time.monotonic()
