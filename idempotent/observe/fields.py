"""The fields by which a line of the log names a message or a key; docs/logging.md lists them."""

from __future__ import annotations

from idempotent.keys import NO_KEY, Key
from idempotent.message import Message


def about_key(key: Key) -> dict[str, object]:
    """`consumer` and `key`, for a line that knows no message."""
    if key is NO_KEY:
        return {"consumer": None, "key": None}
    return {"consumer": key.consumer, "key": str(key)}


def about_message(message: Message) -> dict[str, object]:
    """`message_id` and `position`, for a line that knows no consumer."""
    position = None if message.position is None else str(message.position)
    return {"message_id": message.id, "position": position}
