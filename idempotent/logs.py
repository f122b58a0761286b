"""EventLog: logs events whose message reads well with any handler of Python's `logging`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from idempotent.errors import brief

_FIRST: Final = ("consumer", "key", "error")


class EventLog(logging.LoggerAdapter[logging.Logger]):
    """A module's logger. An event is a constant word, its data are given as `extra`.

    The message of the record is the event with its data, `message_dead consumer='orders:default' key=... error=...`,
    each value as Python writes it, so that a line stays one. What does not apply is left out. The data are attributes
    of the record too, and the word alone is its attribute `event`. Neither has the passwords of URLs, nor more than
    10,000 characters of a text.

    Args:
        name: the module's name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name))

    def log(self, level: int, msg: object, *_: object, **kwargs: Any) -> None:
        """Log an event: `msg` is its word. All other methods call this one."""
        if not self.isEnabledFor(level):
            return
        given = masked(kwargs.pop("extra", {}), brief)
        names = [*filter(given.__contains__, _FIRST), *(name for name in given if name not in _FIRST)]
        shown = {name: brief(repr(given[name])) for name in names if given[name] is not None}
        # What differs from record to record are arguments: who groups records by their text finds one for an event.
        text = " ".join([str(msg), *(f"{name}=%s" for name in shown)])
        self.logger.log(level, text, *shown.values(), extra={**given, "event": msg}, stacklevel=2, **kwargs)


def masked(data: Any, mask: Callable[[str], str]) -> Any:
    """The data of a record, with each text, also in lists and dicts, as `mask` shows it."""
    if isinstance(data, str):
        return mask(data)
    if isinstance(data, Mapping):
        return {name: masked(value, mask) for name, value in data.items()}
    return [masked(value, mask) for value in data] if isinstance(data, (list, tuple)) else data
