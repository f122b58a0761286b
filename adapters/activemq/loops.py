"""For a loop of your own over stomp.py: the message of a frame."""

from __future__ import annotations

from typing import Any

from idempotent.adapters.activemq.frames import Frame, message_of
from idempotent.adapters.activemq.options import destination_of
from idempotent.message import Message


def from_stomp(subject: str, frame: Any) -> Message:
    """The message of a MESSAGE frame, as the adapter makes it: the same id, so the same key.

    Acknowledge what is done: `connection.ack(frame.headers["ack"])`, of a subscription with `ack="client-individual"`.
    ActiveMQ has no way to give a message back by STOMP: it moves one that a client refuses, by `nack`, to its dead
    letters at once. So let one that is not done yet stay unacknowledged, and process it again after `retry_after_s`.

    Args:
        subject: that the loop is subscribed to: a queue's name, or a destination.
        frame: as a listener's `on_message` gets it. Make the connection with `auto_decode=False`: stomp.py
            cannot decode every body, and not every text of Java's.

    Raises:
        ConfigurationError: the subject does not name one queue or one topic.
    """
    body = frame.body or b""
    received = Frame(frame.cmd, dict(frame.headers), body.encode() if isinstance(body, str) else bytes(body))
    return message_of(received, subject, destination_of(subject), redelivered=False)
