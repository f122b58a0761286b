"""The fields by which a line of the log names a message or a key; docs/logging.md lists them."""

from __future__ import annotations

from idempotent.keys import Key
from idempotent.message import Message


def about_key(key: Key | None) -> dict[str, object]:
    """`consumer` and `key`, for a line that knows no message."""
    return {"consumer": None if key is None else key.consumer, "key": None if key is None else str(key)}


def about_message(message: Message) -> dict[str, object]:
    """`message_id` and `position`, for a line that knows no consumer."""
    position = None if message.position is None else str(message.position)
    return {"message_id": message.id, "position": position}
