"""The library's log on stderr: the event first, then its data."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection
from enum import Enum

from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from idempotent.observe.formatters import JsonFormatter, TextFormatter


class LogFormat(Enum):
    """How a log line is written."""

    TEXT = "text"
    JSON = "json"


def log_to(
    console: Console, level: str, form: LogFormat = LogFormat.TEXT, *, typed: Collection[str] = ()
) -> None:
    """Send the log to a console, above its progress bar, unless the application's module has set logging up.

    The library's loggers are enabled: `dictConfig` and `fileConfig` disable, unless told otherwise, all that exist.

    Args:
        console: the console.
        level: the lowest level.
        form: how a line is written.
        typed: which of `log_level` and `log_format` the user has typed: they apply in any case. Handlers of the module
            that write to files stay.
    """
    handler: logging.Handler
    if form is LogFormat.JSON:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(JsonFormatter())
    elif console.is_terminal:
        handler = ConsoleHandler(console)
        handler.setFormatter(TextFormatter())
    else:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(TextFormatter())
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


class ConsoleHandler(logging.Handler):
    """Writes above a progress bar. Rich's own handler takes a quadratic time to lay out a text of many lines."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            style = "red" if record.levelno >= logging.ERROR else ""
            self.console.print(Text(self.format(record), style), soft_wrap=True)
        except Exception:  # a closed terminal; as the handlers of `logging`
            self.handleError(record)


def _is_shown(handler: logging.Handler) -> bool:
    """Whether a handler writes where the command writes."""
    if isinstance(handler, (RichHandler, ConsoleHandler)):
        return True
    shown = (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)
    return isinstance(handler, logging.StreamHandler) and handler.stream in shown
