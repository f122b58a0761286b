"""Durations in the form 90s, 15min, 12h, 14d, 2w."""

from __future__ import annotations

import re
from typing import Final

import typer

_UNITS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_FORM: Final = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})?\s*")


def seconds(text: str) -> float:
    """The duration in seconds; a number without a unit counts seconds.

    Raises:
        typer.BadParameter: not a duration.
    """
    found = _FORM.fullmatch(text.lower())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration: write 90s, 15min, 12h, 14d or 2w")
    return float(found[1]) * _UNITS[found[2] or "s"]


def words(duration_s: float) -> str:
    """The duration in the largest unit of which it has at least two."""
    for unit, size in sorted(_UNITS.items(), key=lambda pair: -pair[1]):
        if unit != "w" and duration_s >= 2 * size:
            return f"{duration_s / size:.3g} {'days' if unit == 'd' else unit}"
    return f"{duration_s:.3g} s"
