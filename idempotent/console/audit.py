"""The audit: who did what in the console, when, why, and what came of it, in a file of JSON lines and in the log."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from idempotent.errors import ConfigurationError, IdempotentError, mask
from idempotent.forks import free_in_child
from idempotent.logs import EventLog

log = EventLog(__name__)
_KEPT: Final = 1000
_READ_BYTES: Final = 4 * 2**20
_NAMED: Final = 20
_NOTHING: Final[dict[str, Any]] = {
    **dict.fromkeys(("time", "who", "action", "consumer", "note"), ""),
    "what": [],
    "count": 0,
    "result": None,
}


class AuditError(IdempotentError):
    """The audit file cannot be read or written, so nothing was changed."""


class Audit:
    """What was done: two lines of JSON for each action, one before it begins and one with its result.

    The result goes to the log too.

    Args:
        path: the file that the lines are added to, which other consoles may share; None: the last ones are kept in
            memory.

    Raises:
        ConfigurationError: the file cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path: Final = path
        self._lock = free_in_child(threading.Lock())
        self._lines: deque[bytes] = deque(maxlen=2 * _KEPT)
        try:
            self._add(None)
        except AuditError as error:
            raise ConfigurationError(str(error)) from error

    @contextmanager
    def noted(
        self, who: str, action: str, consumer: str, what: Sequence[str], note: str = ""
    ) -> Iterator[Callable[[str], None]]:
        """Note that something is about to be done. Yields what notes its result; an error inside is noted as one.

        Args:
            who: the person.
            action: one word.
            consumer: whose letters or keys, or the store.
            what: the letters, keys or messages; the first 20 are named, and all counted.
            note: why.

        Raises:
            AuditError: the file cannot be written.
        """
        about = {
            "consumer": consumer,
            "who": who,
            "action": action,
            "what": [str(each)[:300] for each in what[:_NAMED]],
            "count": len(what),
            "note": note,
        }
        begun = {
            "id": uuid4().hex,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            **about,
            "result": None,
        }

        def end(result: str) -> None:
            log.warning("console_action", extra={**about, "result": result})
            try:
                self._add({**begun, "result": result})
            except AuditError as error:
                log.error("console_audit_failed", extra={"error": str(error)})  # noqa: TRY400 - its cause is in its text

        self._add(begun)
        try:
            yield end
        except IdempotentError as error:
            end(mask(str(error)))
            raise

    def latest(self) -> list[dict[str, Any]]:
        """The entries, the newest first: those at the end of the file, also of other consoles, or of this process.

        Raises:
            AuditError: the file cannot be read.
        """
        found: dict[str, dict[str, Any]] = {}
        for line in self._last_lines():
            try:
                entry = _NOTHING | json.loads(line)
                if all(
                    type(entry[name]) is type(like) for name, like in _NOTHING.items() if like is not None
                ):
                    found[entry["id"]] = entry
            except (ValueError, TypeError, KeyError):
                continue  # the first line may be the end of one
        return [*reversed(found.values())][:_KEPT]

    def _add(self, entry: dict[str, Any] | None) -> None:
        """Add a line; None: only see whether one can be added."""
        line = b"" if entry is None else json.dumps(entry).encode() + b"\n"
        if self.path is None:
            with self._lock:
                self._lines.append(line)
            return
        try:
            # One write at the end of the file: two consoles may share it. The file raises if not all of it is written.
            with open(self.path, "ab+", opener=partial(os.open, mode=0o600)) as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":  # a full disk has cut the last line
                        line = b"\n" + line
                file.write(line)
        except OSError as error:
            raise AuditError(
                f"the audit file {self.path} cannot be written: {error.strerror or error}"
            ) from error

    def _last_lines(self) -> Iterable[bytes]:
        if self.path is None:
            with self._lock:
                return [*self._lines]
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _READ_BYTES))
                return file.read(2 * _READ_BYTES).splitlines()
        except OSError as error:
            raise AuditError(f"the audit file {self.path} cannot be read: {error.strerror}") from error
