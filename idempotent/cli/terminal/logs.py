"""The library's log on stderr: the event first, then its data."""

from __future__ import annotations

import logging
from typing import Final

from rich.console import Console
from rich.logging import RichHandler

from idempotent.cli.terminal.masking import mask

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _EventFormatter(logging.Formatter):
    """`event name=value name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, followed by the data given as `extra`."""
        data = " ".join(f"{name}={value!r}" for name, value in vars(record).items() if name not in _STANDARD)
        return mask(f"{super().format(record)} {data}".rstrip())


def log_to(console: Console, level: str) -> None:
    """Send the log to a console, above its progress bar."""
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, markup=False)
        handler.setFormatter(_EventFormatter("%(message)s"))
    else:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(_EventFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
