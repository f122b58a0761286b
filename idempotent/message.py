"""Message: one delivery, in the same form for every broker. Position: its place in an ordered partition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from idempotent.errors import UndecodableBodyError
from idempotent.keys import id_of

_NO_HEADERS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Message:
    """One delivery of one message.

    Args:
        subject: queue, destination or topic it came from; not empty.
        body: the payload, undecoded. None: Kafka's null value, a tombstone, which says that what the key names was
            deleted. It is not an empty body; RabbitMQ and ActiveMQ have none, and refuse to publish it.
        id: the identity set by the producer, or else by the broker; None when neither set one. An int or a UUID becomes
            its text: the digits, or the usual 36 characters.
        headers: what the producer sent, and nothing that a broker or this library adds on the way: that is in `raw`.
            Copied, and read-only in the message.
        redelivered: the broker's hint that it was delivered before. True and False are both unreliable.
        position: its place in the broker's own terms (offset, delivery tag); for people and logs.
        raw: the client library's own object. Copies in this process share it; a pickled message has none.
        key: Kafka's record key, which chooses the partition, and so which messages keep their order. A consumer does
            not recognise a message by it, but by its `id` or `@consumer(key=...)`. A str is encoded as UTF-8. None: the
            record has none; on publishing, the id becomes the record key. RabbitMQ and ActiveMQ ignore it.
        timestamp: when it was first sent, with a zone: what the producer or the broker noted, kept in retries, dead
            letters and redriven messages. None: the transport has none, or it is outside the years 1 to 9999.
            `publish` ignores it.

    Raises:
        TypeError: the subject, the body, the id, the key or the timestamp is of another type.
        ValueError: the subject is empty, or the timestamp has no zone.
    """

    subject: str
    body: bytes | None = field(repr=False)
    _: KW_ONLY
    id: str | bytes | None
    headers: Mapping[str, Any] = field(repr=False)
    redelivered: bool
    position: Any
    raw: Any = field(repr=False)
    key: bytes | None = field(repr=False)
    timestamp: datetime | None = field(repr=False)

    def __init__(
        self,
        subject: str,
        body: bytes | None = b"",
        *,
        id: str | bytes | int | UUID | None = None,
        headers: Mapping[str, Any] = _NO_HEADERS,
        redelivered: bool = False,
        position: Any = None,
        raw: Any = None,
        key: str | bytes | None = None,
        timestamp: datetime | None = None,
    ) -> None:
        """Check the types of the fields that a key is computed from, and freeze the headers."""
        if not isinstance(subject, str):
            raise TypeError(f"subject must be a str, not {type(subject).__name__}")
        if not subject:
            raise ValueError("subject must not be empty")
        if not isinstance(body, bytes) and body is not None:
            raise TypeError(f"body must be bytes, not {type(body).__name__}")
        if key is not None and not isinstance(key, bytes):
            if not isinstance(key, str):
                raise TypeError(f"key must be a str or bytes, not {type(key).__name__}")
            key = key.encode()
        if timestamp is not None:
            if not isinstance(timestamp, datetime):
                raise TypeError(f"timestamp must be a datetime, not {type(timestamp).__name__}")
            if timestamp.utcoffset() is None:
                raise ValueError("timestamp must have a zone, such as datetime.UTC")
        # A generated __init__ of a frozen dataclass takes twice as long, and every delivery creates a Message.
        _SUBJECT(self, subject)
        _BODY(self, body)
        _ID(self, id if id is None or isinstance(id, str) else id_of(id, "id"))
        _HEADERS(self, headers if headers is _NO_HEADERS else MappingProxyType(dict(headers)))
        _REDELIVERED(self, redelivered)
        _POSITION(self, position)
        _RAW(self, raw)
        _KEY(self, key)
        _TIMESTAMP(self, timestamp)

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            UndecodableBodyError: the body is not UTF-8 encoded JSON, or is None. A handler that raises it makes the
                message dead at once: another try would read the same body.
        """
        if self.body is None:
            raise UndecodableBodyError("a tombstone has no body")
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise UndecodableBodyError(f"the body of {len(self.body)} bytes is not JSON: {error}") from error

    @property
    def from_broker(self) -> bool:
        """Whether it was received: then it has a `position` or `raw`. One that you make for a call has neither."""
        return self.position is not None or self.raw is not None

    def __reduce__(self) -> tuple[Any, ...]:
        headers = dict(self.headers)
        fields_in_order = (
            self.subject,
            self.body,
            self.id,
            headers,
            self.redelivered,
            self.position,
            None,
            self.key,
            self.timestamp,
        )
        return received_message, fields_in_order

    def __copy__(self) -> Message:
        return self  # it is immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> Message:
        # `raw` may hold a connection, which cannot be copied.
        headers, position = deepcopy((dict(self.headers), self.position), memo)
        return received_message(
            self.subject,
            self.body,
            self.id,
            headers,
            self.redelivered,
            position,
            self.raw,
            self.key,
            self.timestamp,
        )


_SUBJECT, _BODY, _ID, _HEADERS, _REDELIVERED, _POSITION, _RAW, _KEY, _TIMESTAMP = (
    Message.__dict__[slot.name].__set__ for slot in fields(Message)
)


class _Draft:
    """A Message in the making, whose attributes can be set."""

    __slots__ = tuple(slot.name for slot in fields(Message))


def received_message(
    subject: str,
    body: bytes | None,
    message_id: str | bytes | None,
    headers: dict[str, Any],
    redelivered: bool,  # noqa: FBT001 - each keyword takes time
    position: Any,
    raw: Any,
    key: bytes | None = None,
    timestamp: datetime | None = None,
) -> Message:
    """A Message from a client library, whose types are known, and whose headers nothing else can change.

    It takes half the time of `Message(...)`. An id of another type, which RabbitMQ's headers may hold, stays as it is:
    the consumer rejects its message, and the worker makes a dead letter of it.
    """
    draft: Any = _Draft()
    draft.subject = subject
    draft.body = body
    draft.id = message_id
    draft.headers = MappingProxyType(headers)
    draft.redelivered = redelivered
    draft.position = position
    draft.raw = raw
    draft.key = key
    draft.timestamp = timestamp
    draft.__class__ = Message
    message: Message = draft
    return message


def moment_of(milliseconds: float) -> datetime | None:
    """The `Message.timestamp` of a number of milliseconds since 1970; None if no datetime can hold it."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


class Position(NamedTuple):
    """One message's place: the `Message.position` that adapters for ordered partitions set.

    Attributes:
        topic_id: the topic's identity; a topic that is created later with the same name has another one.
        partition: the partition's number.
        offset: the message's offset.
        expected: the offset after the previous message. Offsets have gaps, so it may be smaller than `offset`.
        epoch: the leader epoch in which the message was written; -1 if unknown. After a broker lost the end of a
            partition, other messages have the same offsets in a later epoch.
    """

    topic_id: str
    partition: int
    offset: int
    expected: int
    epoch: int = -1

    def __str__(self) -> str:
        place = f"{self.topic_id}/{self.partition}/{self.offset}"
        return place if self.epoch < 0 else f"{place}/{self.epoch}"
