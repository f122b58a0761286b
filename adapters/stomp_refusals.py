"""What an ERROR frame means: try again, or give up."""

from __future__ import annotations

from typing import Final

from idempotent.errors import AdapterError

from .stomp_frames import Frame

# ActiveMQ tells the kind of an error only by the Java exception in the frame's body.
_SECURITY: Final = "SecurityException"
_PASSWORD: Final = ("password is invalid", "No user name", "authenticat")


class LostError(Exception):
    """The connection is over, and what was not confirmed may or may not have happened."""


class RefusedError(AdapterError):
    """The broker refused what was asked."""


class ForbiddenError(RefusedError):
    """The broker refused, and will again: who asks may not."""


def refusal(frame: Frame, what: str) -> RefusedError:
    """The error of an ERROR frame, without the name of who asked."""
    said = " ".join(frame.headers.get("message", "no reason given").split())
    if _SECURITY in frame.body.decode("utf-8", "replace"):
        if any(word.lower() in said.lower() for word in _PASSWORD):
            return ForbiddenError(f"ActiveMQ refused {what}: wrong user name or password")
        return ForbiddenError(f"ActiveMQ refused {what}: {said}")
    return RefusedError(f"ActiveMQ refused {what}: {said}")
