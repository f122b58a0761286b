"""Texts: the body of a JMS TextMessage, which ActiveMQ keeps and sends in Java's modified UTF-8."""

from __future__ import annotations

import re
from typing import Final

_NUL: Final = b"\xc0\x80"
# Only texts with one of these differ: NUL and the characters beyond U+FFFF, which Java writes as two surrogates.
_JAVA_ONLY: Final = re.compile(rb"\xc0\x80|\xed[\xa0-\xbf]")
_UTF8_ONLY: Final = re.compile(rb"[\0\xf0-\xf4]")
_BEYOND: Final = re.compile("[\U00010000-\U0010ffff]")


def from_java(body: bytes) -> bytes:
    """UTF-8 from Java's form. Unchanged: UTF-8, and a text with half a surrogate pair, which UTF-8 does not have."""
    if _JAVA_ONLY.search(body) is None:
        return body
    try:
        units = (
            body.replace(_NUL, b"\0").decode("utf-8", "surrogatepass").encode("utf-16-le", "surrogatepass")
        )
        return units.decode("utf-16-le").encode()
    except UnicodeDecodeError:
        return body


def to_java(body: bytes) -> bytes:
    """Java's form of a UTF-8 text; a Java consumer cannot read the other form. Unchanged: a body that is not UTF-8."""
    if _UTF8_ONLY.search(body) is None:
        return body
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    return _BEYOND.sub(_as_surrogates, text).encode("utf-8", "surrogatepass").replace(b"\0", _NUL)


def _as_surrogates(found: re.Match[str]) -> str:
    high, low = divmod(ord(found[0]) - 0x10000, 0x400)
    return chr(0xD800 + high) + chr(0xDC00 + low)
