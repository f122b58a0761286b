"""Journal: what a consuming process writes down about itself, in a file that no kill makes it forget."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any


class What(Enum):
    """The kinds of lines."""

    STARTED = "started"
    EFFECT = "effect"
    """Of a leased checker. A transactional one's are in its database."""
    RAISED = "raised"
    """The handler failed, as its message made it."""
    HELD = "held"
    """Its key was somebody else's, or the store did not answer: it is looked at again."""
    SETTLED = "settled"
    """The outcome of a delivery is known, and nothing said to the broker yet."""
    STARVED = "starved"
    """The process did not get to run for a while: paused, or on a machine that is too busy."""


class Journal:
    """Appends lines to a file, each with one write: to the system, which keeps it when the process is killed.

    Times are the system's monotonic clock: one for all processes, and right in one whose clock is shifted.

    Args:
        path: the file.
        process: who writes.
    """

    def __init__(self, path: str, process: str) -> None:
        """Open it."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._process = process

    def write(self, what: What, **values: Any) -> None:
        """One line. Its `wall` is the time as this process sees it."""
        line = {
            "what": what.value,
            "process": self._process,
            "at": time.monotonic(),
            "wall": time.time(),
            **values,
        }
        os.write(self._file, f"{json.dumps(line)}\n".encode())


class Tail:
    """Reads what was appended to a journal since the last look."""

    def __init__(self, path: Path) -> None:
        """Begin at its beginning."""
        self._path = path
        self._place = 0

    def lines(self) -> Iterator[dict[str, Any]]:
        """The new lines that are whole."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._place)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._place += len(line)
                yield json.loads(line)
