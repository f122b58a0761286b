"""Message: one delivery, the same for every broker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

_NO_HEADERS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
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
    body: bytes = field(default=b"", repr=False)
    id: str | bytes | None = field(default=None, kw_only=True)
    headers: Mapping[str, Any] = field(default_factory=lambda: _NO_HEADERS, kw_only=True, repr=False)
    redelivered: bool = field(default=False, kw_only=True)
    position: Any = field(default=None, kw_only=True)
    raw: Any = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        """Check the types a key is made from, and freeze the headers."""
        if not isinstance(self.subject, str):
            raise TypeError(f"subject must be a str, not {type(self.subject).__name__}")
        if not self.subject:
            raise ValueError("subject must not be empty")
        if not isinstance(self.body, bytes):
            raise TypeError(f"body must be bytes, not {type(self.body).__name__}")
        if self.headers is not _NO_HEADERS:
            object.__setattr__(self, "headers", MappingProxyType(dict(self.headers)))

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ValueError: it is not UTF-8 encoded JSON.
        """
        return json.loads(self.body)
