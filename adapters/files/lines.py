"""The lines of a file, in constant memory, and of a pipe, without blocking the reader."""

from __future__ import annotations

import gzip
import os
import queue
import stat
import sys
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from idempotent.errors import AdapterError

STANDARD_INPUT: Final = "-"
_READ_AHEAD: Final = 1000
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """One line.

    Attributes:
        number: counted from 1, blank ones included.
        text: without the line break; only the beginning if `whole` is False.
        whole: whether the line is within the limit.
    """

    number: int
    text: bytes
    whole: bool = True


class FileLines:
    """The lines of a regular file. A name that ends in `.gz` is decompressed.

    Args:
        path: the file, or `-` for standard input.
        limit: of a line's length, in bytes.

    Raises:
        AdapterError: it cannot be opened.
    """

    def __init__(self, path: str, limit: int) -> None:
        """Open it."""
        self._path = path
        self._limit = limit
        try:
            self._raw = _opened(path)
        except OSError as error:
            raise AdapterError(f"cannot read {path}: {error.strerror}") from error
        status = os.fstat(self._raw.fileno())
        self.is_regular: Final = stat.S_ISREG(status.st_mode)
        self.bytes_total: Final = status.st_size if self.is_regular else None
        self._file = gzip.GzipFile(fileobj=self._raw) if path.endswith(".gz") else self._raw
        self._lines = self._read()
        self.bytes_read = 0
        """Of `bytes_total`: compressed bytes for a compressed file."""

    def next(self, timeout_s: float) -> Line | None:
        """The next line that is not blank; None at the end.

        Raises:
            AdapterError: the file is damaged, or cannot be read.
        """
        del timeout_s
        return next(self._lines, None)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._raw.close()

    def _read(self) -> Iterator[Line]:
        number = 0
        try:
            while text := self._file.readline(self._limit + 1):
                number += 1
                self.bytes_read = self._raw.tell() if self.is_regular else 0
                whole = text.endswith(b"\n") or len(text) <= self._limit
                if not whole:
                    self._skip()
                text = text.removeprefix(_BOM) if number == 1 else text
                text = text.rstrip(b"\r\n")
                if text.strip():
                    yield Line(number, text, whole)
        except (OSError, EOFError, zlib.error) as error:
            raise AdapterError(f"{self._path} is damaged after line {number}: {error}") from error

    def _skip(self) -> None:
        while (rest := self._file.readline(65536)) and not rest.endswith(b"\n"):
            pass


def _opened(path: str) -> IO[bytes]:
    if path != STANDARD_INPUT:
        return Path(path).open("rb")
    # A duplicate: a thread that waits in sys.stdin would keep the interpreter from ending.
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb")


class PipedLines:
    """The lines of a pipe or terminal. A thread reads ahead; it ends with the input or with the process."""

    def __init__(self, lines: FileLines) -> None:
        """Start reading."""
        self._lines = lines
        self._queue: queue.Queue[Line | AdapterError | None] = queue.Queue(_READ_AHEAD)
        self._closed = False
        self._ended = False
        threading.Thread(target=self._read_ahead, name="idempotent-lines", daemon=True).start()

    def next(self, timeout_s: float) -> Line | None:
        """As `FileLines.next`.

        Raises:
            TimeoutError: no line arrived within `timeout_s` seconds.
        """
        if self._ended:
            return None
        try:
            line = self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait()
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(line, AdapterError):
            raise line
        self._ended = line is None
        return line

    def close(self) -> None:
        """Let the thread end at its next line."""
        self._closed = True

    def _read_ahead(self) -> None:
        last: Line | AdapterError | None
        try:
            while (last := self._lines.next(0)) is not None and self._put(last):
                pass
        except AdapterError as error:
            last = error
        self._put(last)
        self._lines.close()

    def _put(self, line: Line | AdapterError | None) -> bool:
        while not self._closed:
            try:
                self._queue.put(line, timeout=0.2)
            except queue.Full:
                continue
            return True
        return False
