"""The library's log on stderr: the event first, then its data."""

from __future__ import annotations

import logging
from enum import Enum

from rich.console import Console
from rich.logging import RichHandler

from idempotent.observe.formatters import JsonFormatter, TextFormatter


class LogFormat(Enum):
    """How a log line is written."""

    TEXT = "text"
    JSON = "json"


def log_to(console: Console, level: str, form: LogFormat = LogFormat.TEXT) -> None:
    """Send the log to a console, above its progress bar."""
    handler: logging.Handler
    if form is LogFormat.JSON:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(JsonFormatter())
    elif console.is_terminal:
        handler = RichHandler(console=console, show_path=False, markup=False)
        handler.setFormatter(TextFormatter("%(message)s"))
    else:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
