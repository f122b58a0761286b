"""When a consuming process ends that nobody told to."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from idempotent.errors import IdempotentError

_LAST_LINES: Final = 3


class ConsumerEndedError(IdempotentError):
    """The consuming process ended by itself."""


def last_words(log: Path) -> str:
    """The end of what the consuming processes printed, as one line."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return " / ".join(lines[-_LAST_LINES:]) or "it printed nothing"
