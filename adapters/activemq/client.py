"""The parts of stomp.py that are used. Raises MissingExtraError where it is not installed."""

from __future__ import annotations

from idempotent.errors import MissingExtraError

try:
    from stomp.exception import ConnectionClosedException, StompException
except ImportError as error:
    raise MissingExtraError("stomp.py", "stomp") from error
from stomp.protocol import Protocol12
from stomp.transport import Transport
from stomp.utils import Frame, PollableQueue, convert_frame, pack

__all__ = [
    "ConnectionClosedException",
    "Frame",
    "PollableQueue",
    "Protocol12",
    "StompException",
    "Transport",
    "convert_frame",
    "pack",
]
