"""Audit: who did what in the console, when, and what came of it."""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from idempotent.errors import ConfigurationError, IdempotentError
from idempotent.forks import free_in_child
from idempotent.logs import EventLog

log = EventLog(__name__)
_KEPT: Final = 1000
_READ_BYTES: Final = 4 * 2**20
_NAMED: Final = 20
_EMPTY: Final[dict[str, Any]] = {
    **dict.fromkeys(("who", "action", "consumer", "note", "time"), ""),
    "what": [],
    "count": 0,
    "result": None,
}


class AuditError(IdempotentError):
    """The audit file cannot be written, so nothing was changed."""


class Audit:
    """What was done, in this process or, with a file, ever. Each entry goes to the log too, when it has ended.

    Args:
        path: a file to which each action adds a line of JSON before it begins and one with its result; None: none.

    Raises:
        ConfigurationError: the file cannot be read and written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path: Final = path
        self._lock = free_in_child(threading.Lock())
        self._entries: OrderedDict[str, dict[str, Any]] = OrderedDict()
        if path is not None:
            try:
                with path.open("ab"):
                    pass
                self._read(path)
            except OSError as error:
                raise ConfigurationError(
                    f"the audit file {path} cannot be written: {error.strerror}"
                ) from error

    def begin(self, who: str, action: str, consumer: str, what: Sequence[str], note: str = "") -> str:
        """Note that something is about to be done. Returns the entry's id, for `end`.

        Args:
            who: the person.
            action: one word.
            consumer: whose letters or keys, or the store.
            what: the letters, keys or messages; the first 20 are named, and all counted.
            note: why.

        Raises:
            AuditError: the file cannot be written.
        """
        entry = {
            "id": uuid4().hex,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "who": who,
            "action": action,
            "consumer": consumer,
            "what": [str(each)[:300] for each in what[:_NAMED]],
            "count": len(what),
            "note": note,
            "result": None,
        }
        self._add(entry)
        return str(entry["id"])

    def end(self, entry_id: str, result: str) -> None:
        """Note what came of it."""
        with self._lock:
            found = self._entries.get(entry_id)
        if found is None:
            return
        entry = {**found, "result": result}
        extra = {
            "consumer": entry["consumer"],
            "who": entry["who"],
            "action": entry["action"],
            "what": entry["what"],
            "count": entry["count"],
            "note": entry["note"],
            "result": result,
        }
        log.warning("console_action", extra=extra)
        try:
            self._add(entry)
        except AuditError as error:
            log.error("console_audit_failed", extra={"error": str(error)})  # noqa: TRY400 - its cause is in its text

    def latest(self) -> list[dict[str, Any]]:
        """The entries, the newest first, at most 1,000."""
        with self._lock:
            return [*reversed(self._entries.values())]

    def _add(self, entry: dict[str, Any]) -> None:
        with self._lock:
            if self.path is not None:
                line = json.dumps(entry).encode() + b"\n"
                try:
                    # One write at the end of the file: two consoles may share it.
                    opened = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                    try:
                        os.write(opened, line)
                    finally:
                        os.close(opened)
                except OSError as error:
                    raise AuditError(
                        f"the audit file {self.path} cannot be written: {error.strerror}"
                    ) from error
            self._keep(entry)

    def _keep(self, entry: dict[str, Any]) -> None:
        self._entries[entry["id"]] = entry
        while len(self._entries) > _KEPT:
            self._entries.popitem(last=False)

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _READ_BYTES))
            for line in file:
                try:
                    entry = json.loads(line)
                    self._keep(
                        {
                            **dict.fromkeys(("who", "action", "consumer", "note", "time"), ""),
                            "what": [],
                            **entry,
                        }
                    )
                except (ValueError, TypeError, KeyError):
                    continue  # the first line may be the end of one
