"""HealthFile: shows probes that the worker's loop runs, and whether its broker and stores answer."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_EVERY_S: Final = 1.0
READY: Final = "ready\n"
CONNECTING: Final = "connecting\n"
STORE: Final = "store\n"


class HealthFile:
    """A file whose age shows the worker's liveness and whose content its readiness.

    It is rewritten about once a second while the loop runs: `ready`, `connecting` while the broker is not connected, or
    `store` while the store of a consumer cannot be used.

    A file that has not changed for a minute belongs to a worker that is stuck or dead. It is removed at the end.

    Args:
        path: the file; its folder must exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Write nothing yet."""
        self.path: Final = Path(path)
        self._word = ""
        self._next = 0.0

    def beat(self, word: str) -> None:
        """Note that the loop has run once more, with one of the words above.

        Raises:
            OSError: the file cannot be written.
        """
        now = time.monotonic()
        if word == self._word and now < self._next:
            return
        self._next = now + _EVERY_S
        self._word = word
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        draft.write_text(word)
        draft.replace(self.path)  # a reader never sees half a word

    def remove(self) -> None:
        """Remove the file when the worker has ended."""
        with suppress(FileNotFoundError):
            self.path.unlink()
