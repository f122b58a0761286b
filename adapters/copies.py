"""The headers of delayed and dead-letter copies, which keep the identity of the message."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from idempotent.adapters.base import reason_of
from idempotent.message import Message
from idempotent.outcomes import Result

KEY_HEADER: Final = "x-idempotent-key"
"""The message id of the original. Wins over the id that the broker gives the copy."""
ATTEMPT_HEADER: Final = "x-idempotent-attempt"
"""How often this message was tried: each copy counts, and each retry without a copy."""
ORIGIN_HEADER: Final = "x-idempotent-origin"
"""Where the original was: a queue, a destination, or topic/partition/offset."""
REASON_HEADER: Final = "x-idempotent-reason"
"""Why the message is a dead letter: the exception, in one line."""
OUTCOME_HEADER: Final = "x-idempotent-outcome"
"""The outcome that made it a dead letter."""
CUT_HEADER: Final = "x-idempotent-cut"
"""Names of the original's headers that were removed because the dead letter was too large."""
OURS: Final = "x-idempotent-"
"""How the names of all these headers begin."""
_REASON_LIMIT: Final = 1000
_TOO_LARGE: Final = 2**63


def attempt_of(message: Message) -> int:
    """How many copies led to this message; 0 for an original."""
    return number_in(message.headers, ATTEMPT_HEADER)


def number_in(headers: Mapping[str, Any], name: str) -> int:
    """The number in a header from an untrusted producer; 0 if it is missing, not a whole number or out of range."""
    try:
        number = int(headers.get(name) or 0)
    except (TypeError, ValueError, OverflowError):
        return 0
    return number if 0 <= number < _TOO_LARGE else 0


def delayed_headers(message: Message, origin: str) -> dict[str, Any]:
    """The headers of a copy that is delivered again later."""
    return {**message.headers, **_identity(message, origin)}


def dead_letter_headers(message: Message, origin: str, result: Result, retries: int = 0) -> dict[str, Any]:
    """The headers of a dead letter, after so many retries without a copy."""
    return {
        **message.headers,
        **_identity(message, origin, retries),
        REASON_HEADER: reason_of(result)[:_REASON_LIMIT],
        OUTCOME_HEADER: result.outcome.value,
    }


def without_reason(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers of a dead letter that is sent back to its queue: the same message, with no attempts."""
    gone = (REASON_HEADER, OUTCOME_HEADER, ATTEMPT_HEADER, CUT_HEADER)
    return {name: value for name, value in headers.items() if name not in gone}


def came_from(letter: Message, subject: str) -> bool:
    """Whether a dead letter is one of this subject's: several subjects may share a dead-letter target.

    Its origin is a queue, a destination, or `topic/partition/offset`. True if it names none.
    """
    origin = letter.headers.get(ORIGIN_HEADER)
    if not origin or origin in (subject, f"/queue/{subject}"):
        return True
    return re.fullmatch(rf"{re.escape(subject)}/\d+/\d+(/.*)?", str(origin)) is not None


def fit_headers(headers: Mapping[str, Any], fits: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
    """The headers of a dead letter, without the original's largest ones as far as they do not fit.

    The headers of this library stay, and one of them names those that were removed. The body is never cut.
    """
    kept, cut = dict(headers), []
    # A header's name can be bytes: AMQP's and Kafka's need not be UTF-8.
    while not fits(kept) and (theirs := [name for name in kept if not str(name).startswith(OURS)]):
        largest = max(theirs, key=lambda name: len(repr(kept[name])))
        del kept[largest]
        cut.append(str(largest))
        kept[CUT_HEADER] = ", ".join(cut)[:_REASON_LIMIT]
    return kept


def _identity(message: Message, origin: str, retries: int = 0) -> dict[str, Any]:
    copies = attempt_of(message)
    # Only a copy comes from elsewhere. The header of any other message is a producer's, or of before a redrive.
    first_origin = message.headers.get(ORIGIN_HEADER, origin) if copies else origin
    identity: dict[str, Any] = {ATTEMPT_HEADER: str(copies + retries + 1), ORIGIN_HEADER: first_origin}
    if message.id is not None:
        identity[KEY_HEADER] = message.id
    return identity
