"""Publishing: sends messages in transactions, and tells what the broker answered about each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from idempotent.adapters.activemq.connection import StompConnection
from idempotent.adapters.activemq.destinations import destination_of
from idempotent.adapters.activemq.frames import Frame, send_frame
from idempotent.adapters.activemq.refusals import CommitLostError, LostError, RefusedError
from idempotent.adapters.answers import Answers
from idempotent.adapters.copies import KEY_HEADER, without_ours
from idempotent.errors import AdapterError, ConfigurationError
from idempotent.message import Message

_TRANSACTION: Final = 500
_NO_HEADERS: Final[Mapping[str, Any]] = {}
# ActiveMQ's words for a frame that is larger than its `maxFrameSize`. It closes the connection then.
_TOO_LARGE: Final = "maxFrameSize"


class Publishing:
    """Publishes for an adapter.

    Args:
        where: the broker, without credentials.
        connected: returns the connection, or waits for a new one; raises AdapterError when the wait was too long.
        lose: called with the error of a lost connection.
    """

    def __init__(
        self, where: str, connected: Callable[[], StompConnection], lose: Callable[[LostError], None]
    ) -> None:
        self._where = where
        self._connected = connected
        self._lose = lose

    def publish(self, messages: Sequence[Message], ours: Mapping[str, Any] = _NO_HEADERS) -> None:
        """Send messages, and return when the broker has confirmed all of them.

        The broker syncs its disk once per transaction instead of once per message. A transaction that it refuses is
        rolled back, and its messages are sent one by one.

        Args:
            messages: to be sent to their subjects.
            ours: headers of this library that all of them get.

        Raises:
            PublishError: the broker refused some of them, or did not answer.
        """
        answers = Answers(messages)
        frames = answers.made(partial(_frame, ours=ours))
        unsent = frames.copy()
        try:
            while unsent:
                part = dict(islice(unsent.items(), _TRANSACTION))
                is_together = self._together(part, answers)
                for place, frame in part.items():
                    if not is_together:
                        self._alone(place, frame, answers)
                    del unsent[place]
        except AdapterError as error:
            answers.lose(unsent, error)
        answers.check()

    def _together(self, frames: Mapping[int, Frame], answers: Answers) -> bool:
        """Send messages in one transaction. False: none of them was sent."""
        if len(frames) == 1:
            return False
        connection = self._connected()
        try:
            connection.transact(list(frames.values()), f"{len(frames)} messages")
        except RefusedError:
            return False
        except CommitLostError as error:
            self._lose(error)
            answers.lose(frames, self._silent(error))
        except LostError as error:
            self._lose(error)
            return False
        return True

    def _alone(self, place: int, frame: Frame, answers: Answers) -> None:
        connection = self._connected()
        try:
            connection.confirm([frame], f"a message to {frame.headers['destination']}")
        except RefusedError as error:
            answers.refuse(place, error)
        except LostError as error:
            self._lose(error)
            if _TOO_LARGE in str(error):
                answers.refuse(place, error)
            else:
                answers.lose([place], self._silent(error))

    def _silent(self, error: LostError) -> str:
        return f"{self._where} did not confirm a message: {error}"


def _frame(message: Message, ours: Mapping[str, Any] = _NO_HEADERS) -> Frame:
    headers = {**without_ours(message.headers), **ours}
    if message.id is not None:
        headers[KEY_HEADER] = message.id
    try:
        destination = destination_of(message.subject)
    except ConfigurationError as error:
        raise AdapterError(f"cannot publish: {error}") from None
    return send_frame(destination, message.body, headers)
