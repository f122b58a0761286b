"""The errors of a connection: lost, refused for now, or refused for good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from idempotent.adapters.activemq.frames import Frame
from idempotent.errors import AdapterError

# ActiveMQ names the kind of an error only in its message, or by the Java exception in the frame's body.
_SECURITY: Final = ("SecurityException", "not authorized")
_PASSWORD: Final = ("password is invalid", "authentication failed", "unable to authenticate")
# What to check about a copy over which the connection was lost.
_TOO_LARGE: Final = "; is it larger than the broker's maxFrameSize?"
_NO_ROOM: Final = "; is the broker's store full? Then it reads nothing more from a connection that publishes"


class LostError(Exception):
    """The connection is lost. The broker may or may not have processed unconfirmed frames."""


class SilentError(LostError):
    """The broker did not answer in time."""


class UntrustedError(AdapterError):
    """The broker's certificate is not trusted, and another attempt does not change that."""


class CommitLostError(LostError):
    """The connection was lost during a COMMIT: the broker may or may not have processed the whole transaction."""


class CopyLostError(LostError):
    """The connection was lost while copies were sent, possibly because of one of them."""

    def __init__(self, error: LostError, copies: Mapping[str, str]) -> None:
        """`copies`: for the broker's id of each message that was copied, the destination of its copy."""
        is_silent = isinstance(error.__cause__ or error, SilentError)
        super().__init__(f"the connection was lost over it: {error}{_NO_ROOM if is_silent else _TOO_LARGE}")
        self.copies = copies


class RefusedError(AdapterError):
    """The broker refused a frame."""


class ForbiddenError(RefusedError):
    """The broker refused for lack of permission, and always will."""


def refusal(frame: Frame, what: str) -> RefusedError:
    """The error of an ERROR frame, without the user name."""
    message = " ".join(frame.headers.get("message", "no reason given").split())
    if any(word in message.lower() for word in _PASSWORD):
        return ForbiddenError(f"ActiveMQ refused {what}: wrong user name or password")
    text = message + frame.body.decode("utf-8", "replace")
    kind = ForbiddenError if any(word in text for word in _SECURITY) else RefusedError
    return kind(f"ActiveMQ refused {what}: {message}")
