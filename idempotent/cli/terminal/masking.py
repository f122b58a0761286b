"""Keeps passwords off screens and out of logs."""

from __future__ import annotations

import re
from typing import Final

# To the last @ of the word: a password may contain an unquoted @.
_USERINFO: Final = re.compile(r"(://[^:/@\s]*:)[^\s'\"]*@")
_PARAMETER: Final = re.compile(
    r"([?&](?:password|passwd|passcode|pwd|sslpassword)=)[^&\s'\"]*", re.IGNORECASE
)


def mask(text: str) -> str:
    """The text with the passwords of its URLs replaced by `***`."""
    return _PARAMETER.sub(r"\1***", _USERINFO.sub(r"\1***@", text))
