"""Makes text from outside, such as a key or an error, safe to show: without passwords and control characters."""

from __future__ import annotations

import re
from typing import Final

from idempotent.errors import brief

# A terminal obeys these: they move the cursor, clear the screen, or answer a question. The last ones turn text around.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def distinct(text: str) -> str:
    """A text without passwords; in quotes where blanks or invisible characters would make it look like another."""
    text = brief(text)
    return text if text.isprintable() and text == text.strip() else repr(text)


def harmless(text: str) -> str:
    """The text with control characters, except tabs and line ends, as escape sequences."""
    return text if text.isprintable() else _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def count(number: int, thing: str) -> str:
    """`1 key`, `2 keys`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
