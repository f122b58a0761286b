"""The library's log on stderr: the event first, then its data."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection
from enum import Enum

from rich.logging import RichHandler

from idempotent.observe.formatters import JsonFormatter, TextFormatter


class LogFormat(Enum):
    """How a log line is written."""

    TEXT = "text"
    JSON = "json"


def log_to_stderr(level: str, form: LogFormat = LogFormat.TEXT, *, typed: Collection[str] = ()) -> None:
    """Send the log to stderr, unless the application's module has set logging up.

    The library's loggers are enabled: `dictConfig` and `fileConfig` disable, unless told otherwise, all that exist.

    Args:
        level: the lowest level.
        form: how a line is written.
        typed: which of `log_level` and `log_format` the user has typed: they apply in any case. Handlers of the module
            that write to files stay.
    """
    # While a line of progress is shown, sys.stderr is what writes above it.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else TextFormatter())
    root = logging.getLogger()
    is_set_up = bool(root.handlers)
    if not is_set_up or "log_format" in typed:
        for other in filter(_is_shown, root.handlers[:]):
            root.removeHandler(other)
        root.addHandler(handler)
    if not is_set_up or "log_level" in typed:
        root.setLevel(level.upper())
    for name in list(root.manager.loggerDict):
        if name.partition(".")[0] == "idempotent":
            logging.getLogger(name).disabled = False


def _is_shown(handler: logging.Handler) -> bool:
    """Whether a handler writes where the command writes."""
    if isinstance(handler, RichHandler):
        return True
    shown = (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)
    return isinstance(handler, logging.StreamHandler) and handler.stream in shown
