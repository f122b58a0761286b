"""Message: one delivery, the same for every broker. Position: its place in a partition that is read in order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from types import MappingProxyType
from typing import Any, NamedTuple

_NO_HEADERS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Message:
    """One delivery of one message.

    Args:
        subject: queue, destination or topic it came from; not empty.
        body: the payload, undecoded.
        id: the identity the producer (or, failing that, the broker) gave it; None when there is none.
        headers: application headers; copied and read-only from here on.
        redelivered: the broker's hint that it was delivered before. Proves nothing either way.
        position: where it stood, in the broker's own terms (offset, delivery tag); for people and logs.
        raw: the client library's own object.

    Raises:
        TypeError: the body is not bytes, or the subject not a string.
        ValueError: the subject is empty.
    """

    subject: str
    body: bytes = field(repr=False)
    _: KW_ONLY
    id: str | bytes | None
    headers: Mapping[str, Any] = field(repr=False)
    redelivered: bool
    position: Any
    raw: Any = field(repr=False)

    def __init__(
        self,
        subject: str,
        body: bytes = b"",
        *,
        id: str | bytes | None = None,
        headers: Mapping[str, Any] = _NO_HEADERS,
        redelivered: bool = False,
        position: Any = None,
        raw: Any = None,
    ) -> None:
        """Check the types a key is made from, and freeze the headers."""
        if not isinstance(subject, str):
            raise TypeError(f"subject must be a str, not {type(subject).__name__}")
        if not subject:
            raise ValueError("subject must not be empty")
        if not isinstance(body, bytes):
            raise TypeError(f"body must be bytes, not {type(body).__name__}")
        # What a frozen dataclass does by itself takes twice as long, and there is a Message for every delivery.
        _SUBJECT(self, subject)
        _BODY(self, body)
        _ID(self, id)
        _HEADERS(self, headers if headers is _NO_HEADERS else MappingProxyType(dict(headers)))
        _REDELIVERED(self, redelivered)
        _POSITION(self, position)
        _RAW(self, raw)

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ValueError: it is not UTF-8 encoded JSON.
        """
        return json.loads(self.body)


_SUBJECT, _BODY, _ID, _HEADERS, _REDELIVERED, _POSITION, _RAW = (
    Message.__dict__[slot.name].__set__ for slot in fields(Message)
)


class Position(NamedTuple):
    """One message's place, as `Message.position` of adapters that read partitions in order.

    Attributes:
        topic_id: the topic's identity, which a topic of the same name made later does not have.
        partition: its number.
        offset: the message's own.
        expected: the offset after the message before it. Offsets have gaps, so it may be smaller than `offset`.
    """

    topic_id: str
    partition: int
    offset: int
    expected: int

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}/{self.offset}"
