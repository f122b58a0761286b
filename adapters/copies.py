"""What a delayed or dead-letter copy of a message carries, so that it stays the same message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from idempotent.adapters.base import reason_of
from idempotent.message import Message
from idempotent.outcomes import Result

KEY_HEADER: Final = "x-idempotent-key"
"""The message id of the original. Wins over the id that the broker gives the copy."""
ATTEMPT_HEADER: Final = "x-idempotent-attempt"
"""How many copies this message has had, this one included."""
ORIGIN_HEADER: Final = "x-idempotent-origin"
"""Where the original lay: a queue, a destination, or topic/partition/offset."""
REASON_HEADER: Final = "x-idempotent-reason"
"""Why the message is a dead letter: the exception, in one line."""
OUTCOME_HEADER: Final = "x-idempotent-outcome"
"""The outcome that made it a dead letter."""
_OURS: Final = "x-idempotent-"
CUT_HEADER: Final = "x-idempotent-cut"
"""Names of the original's headers for which a dead letter had no room."""
_REASON_LIMIT: Final = 1000
_TOO_LARGE: Final = 2**63


def attempt_of(message: Message) -> int:
    """How many copies led to this message; 0 for an original."""
    return number_in(message.headers, ATTEMPT_HEADER)


def number_in(headers: Mapping[str, Any], name: str) -> int:
    """The whole number in a header that anybody may have written: 0 for none, and for what no number of ours is."""
    try:
        number = int(headers.get(name) or 0)
    except (TypeError, ValueError, OverflowError):
        return 0
    return number if 0 <= number < _TOO_LARGE else 0


def delayed_headers(message: Message, origin: str) -> dict[str, Any]:
    """The headers of a copy that comes again later."""
    return {**message.headers, **_identity(message, origin)}


def dead_letter_headers(message: Message, origin: str, result: Result) -> dict[str, Any]:
    """The headers of a dead letter."""
    return {
        **message.headers,
        **_identity(message, origin),
        REASON_HEADER: reason_of(result)[:_REASON_LIMIT],
        OUTCOME_HEADER: result.outcome.value,
    }


def without_reason(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers of a dead letter that goes back to its queue: the same message, with its attempts at none."""
    gone = (REASON_HEADER, OUTCOME_HEADER, ATTEMPT_HEADER, CUT_HEADER)
    return {name: value for name, value in headers.items() if name not in gone}


def fitting(headers: Mapping[str, Any], fits: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
    """A dead letter's headers, without the largest of the original's if they do not fit otherwise.

    Ours stay, the names of those that go are among them, and the body is nobody's to cut.
    """
    kept, cut = dict(headers), []
    while not fits(kept) and (theirs := [name for name in kept if not name.startswith(_OURS)]):
        largest = max(theirs, key=lambda name: len(repr(kept[name])))
        del kept[largest]
        cut.append(largest)
        kept[CUT_HEADER] = ", ".join(cut)[:_REASON_LIMIT]
    return kept


def _identity(message: Message, origin: str) -> dict[str, Any]:
    first_origin = message.headers.get(ORIGIN_HEADER, origin)
    identity: dict[str, Any] = {ATTEMPT_HEADER: str(attempt_of(message) + 1), ORIGIN_HEADER: first_origin}
    if message.id is not None:
        identity[KEY_HEADER] = message.id
    return identity
