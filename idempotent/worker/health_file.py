"""HealthFile: shows probes that the worker's loop runs, and whether its broker and stores answer."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from idempotent.errors import ConfigurationError
from idempotent.logs import EventLog
from idempotent.observe.log_lines import LogThrottle

log = EventLog(__name__)

_EVERY_S: Final = 1.0
READY: Final = "ready"
CONNECTING: Final = "connecting"
STORE: Final = "store"
WAITING: Final = "waiting"


class HealthFile:
    """A file whose age shows the worker's liveness and whose content its readiness.

    It is rewritten about once a second while the loop runs: `ready`, `connecting` while the broker is not connected, or
    `store` while the store of a consumer cannot be used, or `waiting` while the broker answers but gives the worker
    nothing to read. More lines are for people and alarms: `long messages: 2` says that so many messages take very long,
    and `waits for: ` names topics that are missing or refused, and targets that take no dead letters or delayed copies.
    A probe looks at the first line, because a restart ends all handlers.

    A file that has not changed for a minute belongs to a worker that is stuck or dead. It is removed at the end.

    Args:
        path: the file; its folder must exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Write nothing yet."""
        self.path: Final = Path(path)
        self._text = ""
        self._next = 0.0
        self._told = LogThrottle()

    def beat(self, text: str) -> None:
        """Note that the loop has run once more. `text`: what the file is to say."""
        now = time.monotonic()
        if text == self._text and now < self._next:
            return
        self._next = now + _EVERY_S
        self._text = text
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            draft.write_text(text)
            draft.replace(self.path)  # a reader never sees half of it
        except OSError as error:
            # The probe will notice the old file; messages continue.
            more = self._told.take()
            if more is not None:
                about = {"path": str(self.path), "error": error.strerror or str(error), "more": more}
                log.warning("health_file_failed", extra=about)

    def remove(self) -> None:
        """Remove the file when the worker has ended."""
        with suppress(FileNotFoundError):
            self.path.unlink()


def content(word: str, long: int, waits_for: str | None, paused: Iterable[str]) -> str:
    """What the file says.

    Args:
        word: one of those above.
        long: how many messages take very long.
        waits_for: what the adapter waits for; None: it does not wait.
        paused: the names of consumers that are paused.
    """
    lines = [word]
    if long:
        lines.append(f"long messages: {long}")
    if waits_for:
        lines.append(f"waits for: {waits_for}")
    lines += [f"paused: {name}" for name in sorted(paused)]
    return "\n".join([*lines, ""])


def checked_health_file(path: str | os.PathLike[str] | None) -> HealthFile | None:
    """The health file; None: none is wanted.

    Raises:
        ConfigurationError: no path, or that of a folder or a device, which would be replaced, or in a folder that is
            not there.
    """
    if path is None:
        return None
    if not path or not isinstance(path, (str, os.PathLike)):
        raise ConfigurationError(f"health_file must be a path, such as '/run/worker.health', not {path!r}")
    if Path(path).exists() and not Path(path).is_file():
        raise ConfigurationError(
            f"health_file must be the path of a file, and {path!r} is a folder or a device"
        )
    folder = Path(path).parent
    if not folder.is_dir():
        raise ConfigurationError(
            f"health_file cannot be written: there is no folder {str(folder)!r}; make it"
        )
    return HealthFile(path)
