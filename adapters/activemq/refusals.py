"""What an ERROR frame means: try again, or give up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from idempotent.adapters.activemq.frames import Frame
from idempotent.errors import AdapterError

# ActiveMQ tells the kind of an error only by its words, or by the Java exception in the frame's body.
_SECURITY: Final = ("SecurityException", "not authorized")
_PASSWORD: Final = ("password is invalid", "authentication failed", "unable to authenticate")


class LostError(Exception):
    """The connection is over, and what was not confirmed may or may not have happened."""


class CopyLostError(LostError):
    """The connection was lost while the broker had to take copies: perhaps because of one of them."""

    def __init__(self, error: LostError, positions: Sequence[str]) -> None:
        """`positions`: the broker's ids of the messages that were copied."""
        super().__init__(str(error))
        self.positions = positions


class RefusedError(AdapterError):
    """The broker refused what was asked."""


class ForbiddenError(RefusedError):
    """The broker refused, and will again: who asks may not."""


def refusal(frame: Frame, what: str) -> RefusedError:
    """The error of an ERROR frame, without the name of who asked."""
    said = " ".join(frame.headers.get("message", "no reason given").split())
    if any(word in said.lower() for word in _PASSWORD):
        return ForbiddenError(f"ActiveMQ refused {what}: wrong user name or password")
    text = said + frame.body.decode("utf-8", "replace")
    kind = ForbiddenError if any(word in text for word in _SECURITY) else RefusedError
    return kind(f"ActiveMQ refused {what}: {said}")
