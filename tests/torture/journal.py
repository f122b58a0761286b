"""Journal: what a consuming process does, line by line, in a file that survives its kill."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from idempotent.claims import ClaimRequest, Decision, Verdict
from idempotent.errors import StoreError
from idempotent.message import Message
from idempotent.observe.observers import Observer
from idempotent.outcomes import Action, Outcome, Result
from tests.torture.traffic import known_as


class What(Enum):
    """The kind of a line."""

    STARTED = "started"
    EFFECT = "effect"
    """With a leased checker. Effects of a transactional one are in its database."""
    RAISED = "raised"
    """The handler raised because its message says so."""
    HELD = "held"
    """Another consumer has claimed its key, or the store did not answer: it is claimed again later."""
    SETTLED = "settled"
    """The outcome of a delivery is known; the broker does not know it yet."""
    PUBLISHED = "published"
    """A relay knows that the broker has confirmed a message. Its position is the place in its order key."""
    WRONG = "wrong"
    """A message had other headers than it was sent with, or a duplicate another result than the first."""
    STARVED = "starved"
    """The OS did not schedule the process for a while: it was paused, or the machine is too busy."""


class Journal:
    """Appends lines to a file, each with one write to the OS, which keeps it when the process is killed.

    Times are the system's monotonic clock: one for all processes, and right in one whose clock is shifted.
    """

    def __init__(self, path: str, process: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._process = process

    def write(self, what: What, **values: Any) -> None:
        """Append one line. Its `wall` is the time on the clock of this process."""
        line = {
            "what": what.value,
            "process": self._process,
            "at": time.monotonic(),
            "wall": time.time(),
            **values,
        }
        os.write(self._file, f"{json.dumps(line)}\n".encode())


class Tail:
    """Reads the lines that were appended to a journal since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0

    def lines(self) -> Iterator[dict[str, Any]]:
        """The new complete lines."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._place)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._place += len(line)
                yield json.loads(line)


class JournalObserver(Observer):
    """Writes down each settlement, and the messages that may take effect after later ones of their partition.

    Later messages of a group do not wait for one whose key another delivery has. That is written when the claim is
    answered: when the group is done, the later ones have happened, and this process may have been killed in between.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def claimed(
        self, consumer: str, message: Message, request: ClaimRequest, answer: Decision | StoreError
    ) -> None:
        del consumer, request
        # A lapsed key is claimed again immediately, and may not be late.
        if isinstance(answer, StoreError) or (answer.verdict is Verdict.IN_PROGRESS and not answer.lapsed):
            self._write(message)

    def processed(self, consumer: str, messages: Sequence[Message], results: Sequence[Result]) -> None:
        del consumer
        for message, result in zip(messages, results, strict=True):
            if result.action is Action.HOLD:
                self._write(message)

    def settling(self, message: Message, result: Result) -> None:
        self._journal.write(
            What.SETTLED,
            id=known_as(message),
            position=str(message.position or ""),
            outcome=result.outcome.value,
            error=str(result.error or "")[:200],
        )
        if result.outcome is Outcome.DUPLICATE and result.value not in (None, known_as(message)):
            self._journal.write(What.WRONG, id=known_as(message), error=f"the result {result.value!r}")

    def _write(self, message: Message) -> None:
        self._journal.write(What.HELD, id=known_as(message), position=str(message.position or ""))
