"""The parts of stomp.py that are used. Raises MissingExtraError where it is not installed."""

from __future__ import annotations

import logging

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

# stomp.py logs every frame with its headers and body. Setting a level on this logger brings that back.
if logging.getLogger("stomp.py").level == logging.NOTSET:
    logging.getLogger("stomp.py").setLevel(logging.CRITICAL)
