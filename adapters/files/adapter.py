"""FileAdapter: messages from a JSON Lines file, or from standard input."""

from __future__ import annotations

import heapq
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, NoReturn
from urllib.parse import unquote, urlsplit

from idempotent.adapters.base import Adapter, Delivery, subjects_of
from idempotent.adapters.copies import reason_of, without_ours
from idempotent.adapters.files.lines import STANDARD_INPUT, FileLines, Line, PipedLines
from idempotent.consumer import AnyConsumer
from idempotent.errors import AdapterError, ConfigurationError, UndecodableRecordError
from idempotent.forks import free_in_child
from idempotent.message import Message
from idempotent.outcomes import Result
from idempotent.validation import check_types

# Delayed messages are kept in memory; with this many, no new line is read.
_MOST_DELAYED: Final = 1000
# After this many malformed lines in a row, `receive` returns to the worker.
_LINES_AT_ONCE: Final = 1000
_KEPT_OF_LONG_LINE: Final = 1000
_FIELDS: Final = ("id", "subject", "headers", "body", "key")


@dataclass(frozen=True, slots=True)
class FileCounts:
    """The progress in a file, for progress bars and exit codes.

    Attributes:
        delivered: lines that became messages.
        malformed: lines that could not be parsed, copied to the reject file.
        dead: dead letters, also written to the reject file.
        waiting: messages that are not settled: running or delayed.
        bytes_read: of `bytes_total`; 0 for a pipe.
        bytes_total: size of the file; None for a pipe.
    """

    delivered: int
    malformed: int
    dead: int
    waiting: int
    bytes_read: int
    bytes_total: int | None


class FileAdapter(Adapter):
    """Read messages from a file, one JSON object per line, in constant memory.

    A line is `{"id": ..., "subject": ..., "headers": {...}, "body": ..., "key": ...}`, or with `id_field` the body
    itself. Malformed lines and dead letters go to the reject file with file, line number, reason and the line's text;
    all other lines are processed. A failed message is delivered again after its delay, by this process.

    A file does not record what was settled: after a stop, read it again; processed messages are duplicates then.

    Args:
        path: the file, decompressed if its name ends in `.gz`, or `-` for standard input.
        subject: of lines without one; needed only if the registry has several subjects.
        id_field: lines are bodies, and this field is the message id.
        rejects: the reject file, appended to; default: `path` and `.rejects.jsonl`.
        max_line_bytes: longer lines are rejected.
        clock: seconds; injectable for tests of delays.

    Raises:
        ConfigurationError: `max_line_bytes` is not positive.
    """

    token_type = int

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        subject: str | None = None,
        id_field: str | None = None,
        rejects: str | os.PathLike[str] | None = None,
        max_line_bytes: int = 16 * 2**20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the file in `open`."""
        check_types(FileAdapter, locals())
        if max_line_bytes < 1:
            raise ConfigurationError(f"max_line_bytes must be positive, not {max_line_bytes}")
        self.path: Final = os.fspath(path)
        self._name = "<stdin>" if self.path == STANDARD_INPUT else self.path
        default_rejects = ("stdin" if self.path == STANDARD_INPUT else self.path) + ".rejects.jsonl"
        self.rejects: Final = default_rejects if rejects is None else os.fspath(rejects)
        self._format = RecordFormat(subject, id_field)
        self._max_line_bytes = max_line_bytes
        self._clock = clock
        self._woken = free_in_child(threading.Event())
        self._file: FileLines | None = None
        self._source: FileLines | PipedLines | None = None
        self._rejects: IO[bytes] | None = None
        self._subjects: list[str] = []
        self._ended = False
        self._unsettled: dict[int, Message] = {}
        self._requeued: deque[Message] = deque()
        self._delayed: list[tuple[float, int, Message]] = []
        self._delivered = self._malformed = self._dead = 0

    @classmethod
    def from_url(cls, url: str, **options: Any) -> FileAdapter:
        parts = urlsplit(url)
        path = unquote(parts.netloc.removeprefix("localhost") + parts.path)
        if not path:
            raise ConfigurationError("a file URL needs a path: file:///path/to/lines.jsonl, or file://-")
        return cls(path, **options)

    def open(self, consumers: Sequence[AnyConsumer]) -> None:
        self._subjects = subjects_of(consumers)
        self._file = FileLines(self.path, self._max_line_bytes)
        self._source = self._file if self._file.is_regular else PipedLines(self._file)

    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        until = time.monotonic() + timeout_s
        found: list[Delivery] = []
        while len(found) < limit:
            message = self._next(0.0 if found else until - time.monotonic())
            if message is not None:
                self._unsettled[message.position] = message
                found.append(Delivery(message, message.position))
            elif found or not self._wait(until):
                break
        self._woken.clear()
        return found

    def _acknowledge(self, delivery: Delivery, result: Result) -> bool:
        del result
        return self._unsettled.pop(delivery.token, None) is not None

    def _delay(self, delivery: Delivery, after_s: float) -> bool:
        message = self._unsettled.pop(delivery.token, None)
        if message is not None:
            heapq.heappush(self._delayed, (self._clock() + after_s, message.position, message))
        return message is not None

    def _dead_letter(self, delivery: Delivery, result: Result) -> bool:
        message = self._unsettled.get(delivery.token)
        if message is not None:
            self._reject(message.position, reason_of(result), message.raw, result.outcome.value)
            self._dead += 1
            del self._unsettled[delivery.token]
        return message is not None

    def _give_back(self, delivery: Delivery) -> bool:
        message = self._unsettled.pop(delivery.token, None)
        if message is not None:
            self._requeued.append(message)
        return message is not None

    def publish(self, message: Message) -> None:
        raise AdapterError(f"{self._name} can only be read; a message for {message.subject!r} cannot be sent")

    def wake(self) -> None:
        self._woken.set()

    @property
    def finished(self) -> bool:
        return self._ended and not (self._unsettled or self._requeued or self._delayed)

    @property
    def counts(self) -> FileCounts:
        """The progress. Any thread may ask, also after `close`."""
        file = self._file
        waiting = len(self._unsettled) + len(self._requeued) + len(self._delayed)
        return FileCounts(
            self._delivered,
            self._malformed,
            self._dead,
            waiting,
            file.bytes_read if file else 0,
            file.bytes_total if file else None,
        )

    def close(self) -> None:
        if self._source:
            self._source.close()
        if self._rejects:
            self._rejects.close()
            self._rejects = None

    def _next(self, timeout_s: float) -> Message | None:
        """The next message to deliver; None if no message is available now."""
        if self._delayed and self._delayed[0][0] <= self._clock():
            return replace(heapq.heappop(self._delayed)[2], redelivered=True)
        if self._requeued:
            return replace(self._requeued.popleft(), redelivered=True)
        if self._source is None:
            raise ConfigurationError("open() comes before receive()")
        for _ in range(_LINES_AT_ONCE):
            if self._ended or len(self._delayed) >= _MOST_DELAYED:
                return None
            try:
                line = self._source.next(timeout_s)
            except TimeoutError:
                return None
            if line is None:
                self._ended = True
            elif message := self._message(line):
                return message
        self._woken.set()  # only malformed lines: return, so that the worker calls again at once
        return None

    def _message(self, line: Line) -> Message | None:
        try:
            message = self._format.message(line, self._subjects)
        except UndecodableRecordError as error:
            text = line.text if line.whole else line.text[:_KEPT_OF_LONG_LINE]
            self._reject(line.number, str(error), text, "malformed")
            self._malformed += 1
            return None
        self._delivered += 1
        return message

    def _wait(self, until: float) -> bool:
        """Wait for a delayed message or for `wake`. False: `receive` must return."""
        left_s = until - time.monotonic()
        if left_s <= 0 or self._woken.is_set() or self.finished:
            return False
        due_in_s = self._delayed[0][0] - self._clock() if self._delayed else left_s
        return not self._woken.wait(min(left_s, max(due_in_s, 0.001)))

    def _reject(self, number: int, reason: str, text: bytes, kind: str) -> None:
        """Write to the reject file, before the line counts as settled."""
        record: dict[str, Any] = {"file": self._name, "line": number, "kind": kind, "reason": reason}
        # Bytes that are not UTF-8 stay readable, all other text stays unchanged.
        record["text"] = text.decode("utf-8", "backslashreplace")
        try:
            if self._rejects is None:
                self._rejects = Path(self.rejects).open("ab")  # noqa: SIM115 - closed by close()
            self._rejects.write(
                json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
            )
            self._rejects.flush()
        except OSError as error:
            raise AdapterError(f"cannot write rejects to {self.rejects}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The format of the lines.

    Attributes:
        subject: of lines without one; None: each line must have one, unless only one subject is consumed.
        id_field: lines are bodies, and this field is the message id; None: lines are envelopes,
            `{"id": ..., "subject": ..., "headers": {...}, "body": ..., "key": ...}`.
    """

    subject: str | None = None
    id_field: str | None = None

    def message(self, line: Line, subjects: Collection[str]) -> Message:
        """The message of a line.

        Raises:
            UndecodableRecordError: the line is malformed; the error says why.
        """
        if not line.whole:
            raise UndecodableRecordError(f"longer than {len(line.text) - 1} bytes")
        record = _object(line.text)
        try:
            if self.id_field is not None:
                return Message(
                    self._subject(None, subjects),
                    line.text,
                    id=_id(record.get(self.id_field), self.id_field),
                    position=line.number,
                    raw=line.text,
                )
            return self._from_envelope(record, line, subjects)
        except UnicodeEncodeError as error:
            raise UndecodableRecordError(
                f"half of a surrogate pair, which is not text: {error.reason}"
            ) from error

    def _from_envelope(self, record: Mapping[str, Any], line: Line, subjects: Collection[str]) -> Message:
        unknown = sorted(set(record) - set(_FIELDS))
        if unknown:
            raise UndecodableRecordError(
                f"unknown fields: {', '.join(map(repr, unknown))}; a line has {', '.join(_FIELDS)}, or is the body "
                "itself if id_field says where its id is"
            )
        headers = record.get("headers") or {}
        if not isinstance(headers, dict):
            raise UndecodableRecordError(f"headers must be an object, not {_kind(headers)}")
        return Message(
            self._subject(record.get("subject"), subjects),
            _body(record.get("body", "")),
            id=_id(record.get("id"), "id"),
            headers=without_ours(headers),
            position=line.number,
            raw=line.text,
            key=_key(record.get("key")),
        )

    def _subject(self, named: Any, subjects: Collection[str]) -> str:
        subject = self.subject if named is None else named
        if subject is None and len(subjects) == 1:
            (subject,) = subjects
        if not isinstance(subject, str) or not subject:
            raise UndecodableRecordError(f"no subject; expected are {', '.join(sorted(subjects))}")
        return subject


def _object(text: bytes) -> dict[str, Any]:
    try:
        record = json.loads(text, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise UndecodableRecordError(f"not UTF-8: byte {error.start + 1}") from error
    except (ValueError, RecursionError) as error:
        raise UndecodableRecordError(f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise UndecodableRecordError(f"not a JSON object but {_kind(record)}")
    return record


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not in JSON")


def _id(value: Any, field: str) -> str | None:
    """The message id. A missing one is not malformed: the consumer's `on_missing_key` decides."""
    if isinstance(value, bool) or not isinstance(value, (str, int, type(None))):
        raise UndecodableRecordError(f"{field} must be a string or a whole number, not {_kind(value)}")
    if isinstance(value, str):
        value.encode()
    return None if value is None else str(value)


def _key(value: Any) -> str | None:
    if not isinstance(value, (str, type(None))):
        raise UndecodableRecordError(f"key must be a string, not {_kind(value)}")
    return value


def _body(value: Any) -> bytes | None:
    """A string unchanged, null as a tombstone, any other value as JSON."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
