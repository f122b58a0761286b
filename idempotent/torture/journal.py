"""Journal: what a consuming process does, line by line, in a file that survives its kill."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any


class What(Enum):
    """The kind of a line."""

    STARTED = "started"
    EFFECT = "effect"
    """With a leased checker. Effects of a transactional one are in its database."""
    RAISED = "raised"
    """The handler raised because its message says so."""
    HELD = "held"
    """Another consumer has claimed its key, or the store did not answer: it is claimed again later."""
    SETTLED = "settled"
    """The outcome of a delivery is known; the broker does not know it yet."""
    STARVED = "starved"
    """The OS did not schedule the process for a while: it was paused, or the machine is too busy."""


class Journal:
    """Appends lines to a file, each with one write to the OS, which keeps it when the process is killed.

    Times are the system's monotonic clock: one for all processes, and right in one whose clock is shifted.

    Args:
        path: the file.
        process: the name of the process that writes.
    """

    def __init__(self, path: str, process: str) -> None:
        """Open it."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._process = process

    def write(self, what: What, **values: Any) -> None:
        """Append one line. Its `wall` is the time on the clock of this process."""
        line = {
            "what": what.value,
            "process": self._process,
            "at": time.monotonic(),
            "wall": time.time(),
            **values,
        }
        os.write(self._file, f"{json.dumps(line)}\n".encode())


class Tail:
    """Reads the lines that were appended to a journal since the last call."""

    def __init__(self, path: Path) -> None:
        """Begin with the first line."""
        self._path = path
        self._place = 0

    def lines(self) -> Iterator[dict[str, Any]]:
        """The new complete lines."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._place)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._place += len(line)
                yield json.loads(line)
