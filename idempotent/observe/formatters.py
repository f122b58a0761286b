"""TextFormatter, JsonFormatter: the library's events with their data, for a handler of Python's `logging`."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from idempotent.errors import mask
from idempotent.logs import masked

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "event"}


def _data(record: logging.LogRecord) -> dict[str, Any]:
    """The data given as `extra`, without what does not apply."""
    return {
        name: value for name, value in vars(record).items() if name not in _STANDARD and value is not None
    }


class TextFormatter(logging.Formatter):
    """Writes `time level event name=value name=value`, and the traceback below it. Passwords in URLs become `***`.

    Records of other loggers are written likewise. Without it, an event reads the same, in the format of your handler.

    Args:
        fmt: what comes before the data, as `logging.Formatter` takes it.
    """

    def __init__(self, fmt: str = "%(asctime)s %(levelname)s %(message)s") -> None:
        super().__init__(fmt)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line, followed by the data that its message does not have."""
        line = super().formatMessage(record)
        rest = [f"{name}={value!r}" for name, value in _data(record).items() if f" {name}=" not in line]
        return " ".join([line, *rest])

    def format(self, record: logging.LogRecord) -> str:
        """The line and the traceback, without passwords."""
        return mask(super().format(record))


class JsonFormatter(logging.Formatter):
    """Writes one object a line: time, level, logger, event, its data, and the traceback as `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """The object, without passwords."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": getattr(record, "event", None) or record.getMessage(),
            **_data(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # Before it is written: a mask would take a quote's backslash for a part of the password before it.
        return json.dumps(masked(line, mask), default=lambda value: mask(str(value)))
