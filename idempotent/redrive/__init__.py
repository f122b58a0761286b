"""Dead letters of a consumer: look at them, return them to their subject so that they run, or drop them."""

from __future__ import annotations

from idempotent.redrive.dropping import Dropped, drop
from idempotent.redrive.reading import ALL, Letter, LetterFilter, error_group, letters
from idempotent.redrive.returning import LEAST_RATE, Redriven, redrive

__all__ = [
    "ALL",
    "LEAST_RATE",
    "Dropped",
    "Letter",
    "LetterFilter",
    "Redriven",
    "drop",
    "error_group",
    "letters",
    "redrive",
]
