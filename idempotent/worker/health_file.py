"""HealthFile: tells whoever watches the process that the worker's loop turns, and that its broker is there."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_EVERY_S: Final = 1.0
READY: Final = "ready\n"
CONNECTING: Final = "connecting\n"


class HealthFile:
    """A file whose age is the worker's liveness and whose word is its readiness.

    It is written again about once a second while the loop turns: `ready`, or `connecting` while there is no broker.
    A file that has not changed for a minute belongs to a worker that is stuck or dead. It is removed at the end.

    Args:
        path: where; its folder must exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Write nothing yet."""
        self.path: Final = Path(path)
        self._word = ""
        self._next = 0.0

    def beat(self, *, ready: bool) -> None:
        """The loop has turned.

        Raises:
            OSError: the file cannot be written.
        """
        now = time.monotonic()
        word = READY if ready else CONNECTING
        if word == self._word and now < self._next:
            return
        self._next = now + _EVERY_S
        self._word = word
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        draft.write_text(word)
        draft.replace(self.path)  # whoever reads sees a whole word

    def remove(self) -> None:
        """The worker has ended."""
        with suppress(FileNotFoundError):
            self.path.unlink()
