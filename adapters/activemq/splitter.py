"""FrameSplitter: splits a stream of bytes into STOMP frames."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_END_OF_HEADERS: Final = re.compile(rb"\n\r?\n")
_CONTENT_LENGTH: Final = re.compile(rb"^content-length:[ \t]*(\d{1,18})[ \t\r]*$", re.MULTILINE)
_BETWEEN_FRAMES: Final = b"\r\n"


class FrameSplitter:
    """Takes bytes and yields frames, without their closing NUL. Heartbeats are skipped."""

    def __init__(self) -> None:
        self._received = bytearray()

    def add(self, chunk: bytes) -> None:
        """Add received bytes."""
        self._received += chunk

    def __iter__(self) -> Iterator[bytes]:
        """Yield the complete frames, each once."""
        while (end := self._end_of_first()) is not None:
            frame = bytes(self._received[:end])
            del self._received[: end + 1]
            yield frame

    def _end_of_first(self) -> int | None:
        while self._received[:1] and self._received[0] in _BETWEEN_FRAMES:
            del self._received[0]
        headers = _END_OF_HEADERS.search(self._received)
        if headers is None:
            return None
        length = _CONTENT_LENGTH.search(self._received, 0, headers.end())
        if length is not None:
            end = headers.end() + int(length[1])
            return end if end < len(self._received) else None
        end = self._received.find(b"\0", headers.end())
        return end if end >= 0 else None
