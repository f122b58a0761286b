"""The columns that this package adds to a frame between Spark's stages, and column names in general."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from idempotent.errors import ConfigurationError

HASH_COLUMN: Final = "_idem_key"
"""The hash of a row's key."""
PAYLOAD_COLUMN: Final = "_idem_payload"
"""The fingerprint of a row's payload."""
STATUS_COLUMN: Final = "_idem"
"""The verdict of `emit="status"`; the only one that a caller sees."""
STAYS_COLUMN: Final = "_idem_stays"
"""Whether a row is kept when a frame has several rows with its key."""

_RESERVED: Final = frozenset({HASH_COLUMN, PAYLOAD_COLUMN, STATUS_COLUMN, STAYS_COLUMN})


def names_of(key: str | Sequence[str]) -> list[str]:
    """Column names as a list; a single name may be given as plain text."""
    return [key] if isinstance(key, str) else list(key)


def quoted(name: str) -> str:
    """A column name for Spark, with any characters in it."""
    return f"`{name.replace('`', '``')}`"


def refuse_reserved(columns: Sequence[str]) -> None:
    """Refuse a frame that already has one of this package's columns.

    Raises:
        ConfigurationError: the frame has a column with a reserved name.
    """
    # Spark ignores the case of column names.
    taken = [name for name in columns if name.lower() in _RESERVED]
    if taken:
        raise ConfigurationError(
            f"columns named {', '.join(taken)} are this package's own: rename or drop them"
        )
