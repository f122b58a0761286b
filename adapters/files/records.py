"""Messages from the lines of a JSON Lines file."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from idempotent.adapters.copies import without_ours
from idempotent.adapters.files.lines import Line
from idempotent.errors import UndecodableRecordError
from idempotent.message import Message

_FIELDS: Final = ("id", "subject", "headers", "body", "key")


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
