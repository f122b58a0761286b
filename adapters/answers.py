"""Answers: what a broker said about each of the messages that were published together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from idempotent.errors import AdapterError, PublishError, described
from idempotent.message import Message

T = TypeVar("T")
# What an encoder raises about a message that it cannot encode. UnicodeError is a ValueError.
_UNENCODABLE: Final = (AdapterError, RecursionError, TypeError, ValueError)
_MOST_NAMED: Final = 3


class Answers:
    """The messages that the broker refused, and those to which it gave no answer, by their places.

    Args:
        messages: in the order in which they were given to `publish_many`.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._refused: dict[int, str] = {}
        self._unknown: dict[int, str] = {}

    def refuse(self, place: int, reason: BaseException | str) -> None:
        """The broker, or its client, refused this message: the broker does not have it."""
        self._refused[place] = str(reason)

    def lose(self, places: Iterable[int], reason: BaseException | str) -> None:
        """There was no answer to these messages: the broker may have them."""
        self._unknown.update(dict.fromkeys(places, str(reason)))

    def made(self, make: Callable[[Message], T]) -> dict[int, T]:
        """What `make` makes of each message; those for which it raises are refused."""
        made = {}
        for place, message in enumerate(self._messages):
            try:
                made[place] = make(message)
            except _UNENCODABLE as error:
                is_said = isinstance(error, AdapterError)
                self.refuse(place, error if is_said else f"it cannot be sent: {described(error)}")
        return made

    def check(self) -> None:
        """Return if all messages are confirmed.

        Raises:
            PublishError: some are not.
        """
        if self._refused or self._unknown:
            raise PublishError(self._text(), refused=self._refused, unknown=self._unknown)

    def _text(self) -> str:
        parts = [*self._parts(self._refused, "was refused"), *self._parts(self._unknown, "is not confirmed")]
        if len(self._messages) == 1:
            return parts[0]
        named = "; ".join(parts[:_MOST_NAMED])
        others = f"; and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
        return f"{len(parts)} of {len(self._messages)} messages are not confirmed: {named}{others}"

    def _parts(self, reasons: Mapping[int, str], what: str) -> list[str]:
        return [
            f"message {self._messages[place].id!r:.100} for {self._messages[place].subject!r:.100} {what}: {reason}"
            for place, reason in sorted(reasons.items())
        ]
