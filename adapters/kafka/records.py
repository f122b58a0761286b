"""Messages from Kafka records, and the headers of records from messages."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from operator import methodcaller
from typing import Any, Final

from idempotent.adapters.copies import (
    KEY_HEADER,
    ONLY_HEADER,
    ORIGIN_HEADER,
    OURS,
    TIMESTAMP_HEADER,
    group_in,
    number_in,
    returned_headers,
    take_ours,
    without_ours,
)
from idempotent.adapters.kafka.client import TIMESTAMP_NOT_AVAILABLE, KafkaMessage, Raw
from idempotent.message import Message, Position, moment_of, received_message

DUE_HEADER: Final = "x-idempotent-due"
"""When a copy in a retry topic is due, in milliseconds since 1970."""
ANY_PARTITION: Final = -1
"""The client library's partitioner chooses by the key."""
NO_EPOCH: Final = -1
"""The client library's word for a leader epoch that is not known."""
# confluent-kafka 2.16 does not report a name that is not UTF-8; the interpreter notices it only in calls like this.
_decode_headers: Final = methodcaller("headers")
Headers = list[tuple[str, bytes | None]]
Outgoing = tuple[str, bytes | None, bytes | None, Headers]
"""A record to send: topic, value, key, headers."""


def message_of(raw: Raw, subject: str, position: Position, redelivered: bool) -> Message:  # noqa: FBT001
    """The message of a record; `subject` is the topic of the original.

    Its id is the header `x-idempotent-key`, else `<topic id>/<partition>/<offset>/<leader epoch>`: a topic that is
    deleted and created again has the same offsets but another id, and a log that was truncated has them in a later
    epoch. Its timestamp is that of the first original.
    """
    headers = _texts(raw)
    ours = take_ours(headers, subject)
    message_id = ours.get(KEY_HEADER) or str(position)
    sent_at = number_in(ours, TIMESTAMP_HEADER) or _written_at(raw)
    timestamp = None if sent_at is None else moment_of(sent_at)
    return received_message(
        subject, raw.value(), message_id, headers, redelivered, position, raw, raw.key(), timestamp
    )


def origin_of(raw: Raw) -> tuple[str, int, int]:
    """Topic, partition and offset."""
    topic, number, offset = raw.topic(), raw.partition(), raw.offset()
    assert topic is not None
    assert number is not None
    assert offset is not None
    return topic, number, offset


def epoch_of(raw: Raw) -> int:
    """The leader epoch in which the record was written; NO_EPOCH from brokers that have none."""
    epoch = raw.leader_epoch()
    return NO_EPOCH if epoch is None else epoch


def problem_of(raw: Raw) -> str | None:
    """Why the client library cannot decode the headers of a record, which has none from then on; None if it can."""
    try:
        _decode_headers(raw)
    except (SystemError, UnicodeError) as error:
        # Its list has holes, and to read them would end the process.
        raw.set_headers([])
        return f"the headers cannot be decoded: {error.__cause__ or error}"
    return None


def outgoing(message: Message) -> Outgoing:
    """The record of a message. Its key is the message's, else that of the record that it came from, else the id."""
    headers = dict(without_ours(message.headers))
    identity = message.id.encode() if isinstance(message.id, str) else message.id
    if identity is not None:
        headers[KEY_HEADER] = identity
    key = message.key
    if key is None:
        came_with = message.raw.key() if isinstance(message.raw, KafkaMessage) else None
        key = came_with or identity
    return message.subject, message.body, key, encoded(headers.items())


def size_of(raw: Raw) -> int:
    """The bytes of a record's value, key and headers."""
    size = len(raw.value() or b"") + len(raw.key() or b"")
    for name, value in _pairs(raw):
        size += len(name) + (0 if value is None else len(value))
    return size


def origin_text(raw: Raw) -> str:
    """Topic, partition and offset as a header's text."""
    return "/".join(map(str, origin_of(raw)))


def due_in_s(raw: Raw) -> float:
    """Seconds until a copy in a retry topic is due."""
    return max(number_in(dict(_pairs(raw)), DUE_HEADER) / 1000 - time.time(), 0.0)


def ours_of(raw: Raw, subject: str) -> Mapping[str, Any]:
    """This library's headers of a record that was read for `subject`, as far as they hold."""
    return take_ours(_texts(raw), subject)


def only_for(raw: Raw, subject: str) -> str | None:
    """The group that a record, read for `subject`, is for; None: all."""
    if not any(name == ONLY_HEADER for name, _ in _pairs(raw)):
        return None
    return group_in(ours_of(raw, subject), ONLY_HEADER)


def copied_headers(raw: Raw, ours: Mapping[str, Any]) -> Headers:
    """The original's own headers unchanged, repeated ones included, and this library's from `ours`."""
    return [*_theirs(raw), *encoded({**_sent_at(raw), **ours}.items())]


def sent_back_headers(letter: Message, source: str, group: str) -> Headers:
    """The headers of a dead letter, read for `source`, that is sent back for a group, repeated ones included."""
    ours = returned_headers(letter, ours_of(letter.raw, source), letter.subject, group)
    ours.pop(DUE_HEADER, None)
    return [*_theirs(letter.raw), *encoded({**_sent_at(letter.raw), **ours}.items())]


def first_partition(letter: Message, source: str) -> int:
    """The partition of the original, if its dead letter, read for `source`, names one of its subject."""
    topic, _, place = str(ours_of(letter.raw, source).get(ORIGIN_HEADER, "")).partition("/")
    number = place.partition("/")[0]
    return int(number) if topic == letter.subject and number.isascii() and number.isdigit() else ANY_PARTITION


def _written_at(raw: Raw) -> int | None:
    """The record's timestamp, in milliseconds since 1970; None: it has none."""
    kind, milliseconds = raw.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds


def _sent_at(raw: Raw) -> dict[str, str]:
    """The header with the record's timestamp. A copy has a new one, or retention might delete it before it is read."""
    milliseconds = _written_at(raw)
    return {} if milliseconds is None else {TIMESTAMP_HEADER: str(milliseconds)}


def _theirs(raw: Raw) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in _pairs(raw) if not name.startswith(OURS)]


def encoded(headers: Iterable[tuple[str, Any]]) -> Headers:
    """Headers as Kafka stores them: bytes, or None."""
    return [(name, _bytes(value)) for name, value in headers]


def _pairs(raw: Raw) -> list[tuple[str, Any]]:
    headers = raw.headers() or []
    return list(headers.items()) if isinstance(headers, dict) else headers


def _texts(raw: Raw) -> dict[str, Any]:
    pairs = _pairs(raw)
    try:
        return {name: value.decode() for name, value in pairs}
    except (AttributeError, UnicodeDecodeError):  # None, or bytes that are no text
        return {name: _text(value) for name, value in pairs}


def _text(value: Any) -> Any:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def _bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()
