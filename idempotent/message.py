"""Message: one delivery, in the same form for every broker. Position: its place in an ordered partition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from idempotent.errors import UndecodableBodyError

_NO_HEADERS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Message:
    """One delivery of one message.

    Args:
        subject: queue, destination or topic it came from; not empty.
        body: the payload, undecoded.
        id: the identity set by the producer, or else by the broker; None when neither set one.
        headers: application headers; copied, and read-only in the message.
        redelivered: the broker's hint that it was delivered before. True and False are both unreliable.
        position: its place in the broker's own terms (offset, delivery tag); for people and logs.
        raw: the client library's own object. Copies in this process share it; a pickled message has none.

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
        """Check the types of the fields that a key is computed from, and freeze the headers."""
        if not isinstance(subject, str):
            raise TypeError(f"subject must be a str, not {type(subject).__name__}")
        if not subject:
            raise ValueError("subject must not be empty")
        if not isinstance(body, bytes):
            raise TypeError(f"body must be bytes, not {type(body).__name__}")
        # A generated __init__ of a frozen dataclass takes twice as long, and every delivery creates a Message.
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
            UndecodableBodyError: the body is not UTF-8 encoded JSON. A handler that raises it makes the message dead
                at once: another try would read the same body.
        """
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise UndecodableBodyError(f"the body of {len(self.body)} bytes is not JSON: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(
            Message,
            self.subject,
            self.body,
            id=self.id,
            headers=dict(self.headers),
            redelivered=self.redelivered,
            position=self.position,
        )
        return make, ()

    def __copy__(self) -> Message:
        return self  # it is immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> Message:
        # `raw` may hold a connection, which cannot be copied.
        return replace(
            self, headers=deepcopy(dict(self.headers), memo), position=deepcopy(self.position, memo)
        )


_SUBJECT, _BODY, _ID, _HEADERS, _REDELIVERED, _POSITION, _RAW = (
    Message.__dict__[slot.name].__set__ for slot in fields(Message)
)


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
