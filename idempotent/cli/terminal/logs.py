"""The library's log on stderr: the event first, then its data."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from rich.console import Console
from rich.logging import RichHandler

from idempotent.errors import mask

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogFormat(Enum):
    """How a log line is written."""

    TEXT = "text"
    JSON = "json"


def _data(record: logging.LogRecord) -> dict[str, Any]:
    """The data given as `extra`, without what does not apply."""
    return {
        name: value for name, value in vars(record).items() if name not in _STANDARD and value is not None
    }


class _TextFormatter(logging.Formatter):
    """`event name=value name=value`, and the traceback below it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line, followed by its data."""
        data = " ".join(f"{name}={value!r}" for name, value in _data(record).items())
        return f"{super().formatMessage(record)} {data}".rstrip()

    def format(self, record: logging.LogRecord) -> str:
        """The line and the traceback, without passwords."""
        return mask(super().format(record))


class _JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, event, its data, and the traceback as `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """The object, without passwords."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_data(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return mask(json.dumps(line, default=str))


def log_to(console: Console, level: str, form: LogFormat = LogFormat.TEXT) -> None:
    """Send the log to a console, above its progress bar."""
    handler: logging.Handler
    if form is LogFormat.JSON:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(_JsonFormatter())
    elif console.is_terminal:
        handler = RichHandler(console=console, show_path=False, markup=False)
        handler.setFormatter(_TextFormatter("%(message)s"))
    else:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(_TextFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
