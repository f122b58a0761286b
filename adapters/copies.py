"""The headers of this library: they carry a message's id, and what a delayed or dead-letter copy is a copy of.

A handler never sees them, so that what it sends on is another message. A copy names the subject that it was made for,
and only that one believes it: a client without this library may pass on all headers of what it received.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote, unquote

from idempotent.errors import described
from idempotent.message import Message
from idempotent.outcomes import Result

KEY_HEADER: Final = "x-idempotent-key"
"""The message id, from a producer or from the original of a copy. It wins over the id that the broker gives."""
FOR_HEADER: Final = "x-idempotent-for"
"""The queue, destination or topic that a copy is for. Elsewhere these headers are ignored."""
GIVEN_HEADER: Final = "x-idempotent-given"
"""The key of a copy is the producer's own, which holds wherever the message goes."""
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
GROUP_HEADER: Final = "x-idempotent-buried-by"
"""The group of consumers whose dead letter it is."""
TIMESTAMP_HEADER: Final = "x-idempotent-timestamp"
"""When the original of a copy was sent, in milliseconds since 1970, where the broker gives every copy a new time."""
ONLY_HEADER: Final = "x-idempotent-only"
"""The group of consumers that a copy is for, where several read its destination. The others acknowledge it."""
OURS: Final = "x-idempotent-"
"""How the names of all these headers begin."""
_OF_A_LETTER: Final = (REASON_HEADER, OUTCOME_HEADER, ATTEMPT_HEADER, CUT_HEADER, GROUP_HEADER)
_NONE: Final[Mapping[str, Any]] = {}
_REASON_LIMIT: Final = 1000
_TOO_LARGE: Final = 2**63
T = TypeVar("T", bound=Hashable)


class UntakenCopies(Generic[T]):
    """The copies that a broker has refused, and which are sent again until it takes them.

    Args:
        is_wanted: whether the original of a copy still waits for it here.
    """

    def __init__(self, is_wanted: Callable[[T], bool]) -> None:
        """Start with none."""
        self._is_wanted = is_wanted
        self._known: dict[T, tuple[str, str]] = {}

    def refused(self, copy: T, target: str, reason: str) -> None:
        """Note that the broker did not take this copy, and why."""
        self._known[copy] = (target, reason)

    def taken(self, copy: T) -> None:
        """Note that the broker has this copy."""
        self._known.pop(copy, None)

    @property
    def text(self) -> str | None:
        """For each target how many copies it is to take, and its last reason; None: there are no such copies."""
        if not self._known:
            return None
        self._known = {copy: each for copy, each in self._known.items() if self._is_wanted(copy)}
        counts = Counter(target for target, _ in self._known.values())
        reasons = dict(self._known.values())
        return (
            "; ".join(
                f"{target} to take {counts[target]} cop{'y' if counts[target] == 1 else 'ies'}: {reason}"
                for target, reason in reasons.items()
            )
            or None
        )


def without_ours(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """The headers of a message to publish: its id is its `id`, whatever it was made from."""
    # A header's name can be bytes: AMQP's and Kafka's need not be UTF-8.
    if any(str(name).startswith(OURS) for name in headers):
        return {name: each for name, each in headers.items() if not str(name).startswith(OURS)}
    return headers


def take_ours(
    headers: dict[str, Any], place: str, dead_of: Callable[[str], str] | None = None
) -> Mapping[str, Any]:
    """Remove this library's headers from received ones. Returns those that hold.

    Args:
        headers: as received; the producer's own remain.
        place: where the message was read, in the words of FOR_HEADER.
        dead_of: the place to which a broker moves what was to be read at another; None: it moves nothing.
    """
    ours: dict[str, Any] = {}
    for name in list(headers):
        if str(name).startswith(OURS):
            ours[name] = headers.pop(name)
    if not ours:
        return _NONE
    # A producer says of no message where it is to be read.
    made_for = ours.get(FOR_HEADER, place)
    if made_for == place or (dead_of is not None and dead_of(str(made_for)) == place):
        return ours
    return {KEY_HEADER: ours[KEY_HEADER]} if ours.keys() >= {GIVEN_HEADER, KEY_HEADER} else _NONE


def number_in(headers: Mapping[str, Any], name: str) -> int:
    """The number in a header from an untrusted producer; 0 if it is missing, not a whole number or out of range."""
    try:
        number = int(headers.get(name) or 0)
    except (TypeError, ValueError, OverflowError):
        return 0
    return number if 0 <= number < _TOO_LARGE else 0


def delayed_headers(message: Message, ours: Mapping[str, Any], place: str, origin: str) -> dict[str, Any]:
    """This library's headers of a copy that is delivered again later.

    Args:
        message: the original.
        ours: what `take_ours` took from it.
        place: where the copy is to be read.
        origin: where the original was read.
    """
    return {**ours, **_identity(message, ours, place, origin)}


def dead_letter_headers(
    message: Message,
    ours: Mapping[str, Any],
    place: str,
    origin: str,
    result: Result,
    retries: int = 0,
    group: str | None = None,
) -> dict[str, Any]:
    """This library's headers of a dead letter, after so many retries without a copy; see `delayed_headers`.

    A `group` is named where others read the same messages, and have dead letters of their own.
    """
    return {
        **{name: value for name, value in ours.items() if name != ONLY_HEADER},
        **({} if group is None else {GROUP_HEADER: quote(group)}),
        **_identity(message, ours, place, origin, retries),
        REASON_HEADER: reason_of(result)[:_REASON_LIMIT],
        OUTCOME_HEADER: result.outcome.value,
    }


def returned_headers(
    letter: Message, ours: Mapping[str, Any], place: str, group: str | None = None
) -> dict[str, Any]:
    """This library's headers of a dead letter that is sent back: the same message, with no attempts.

    It is for this `group` alone, if one is given.
    """
    kept = {name: value for name, value in ours.items() if name not in _OF_A_LETTER}
    return {**kept, **_key(letter, ours, place), **only_for(group)}


def only_for(group: str | None) -> dict[str, str]:
    """The header of a copy for one group."""
    # ActiveMQ keeps no other texts as they are.
    return {} if group is None else {ONLY_HEADER: quote(group)}


def group_in(ours: Mapping[str, Any], name: str) -> str | None:
    """The group that one of our headers names."""
    group = ours.get(name)
    return None if group is None else unquote(str(group))


def came_from(origin: str | None, subject: str) -> bool:
    """Whether the original of a dead letter was one of this subject's: several may share a dead-letter target.

    Its origin is a queue, a destination, or `topic/partition/offset`. True if it names none.
    """
    if not origin or origin in (subject, f"/queue/{subject}"):
        return True
    return re.fullmatch(rf"{re.escape(subject)}/\d+/\d+(/.*)?", origin) is not None


def fit_headers(headers: Mapping[str, Any], fits: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
    """The headers of a dead letter, without the original's largest ones as far as they do not fit.

    The headers of this library stay, and one of them names those that were removed. The body is never cut.
    """
    theirs = [name for name in headers if not str(name).startswith(OURS)]
    theirs.sort(key=lambda name: len(repr(headers[name])), reverse=True)

    def without(count: int) -> dict[str, Any]:
        if not count:
            return dict(headers)
        kept = headers.keys() - theirs[:count]
        cut = {CUT_HEADER: ", ".join(map(str, theirs[:count]))[:_REASON_LIMIT]}
        return {name: each for name, each in headers.items() if name in kept} | cut

    if not theirs or fits(headers):
        return without(0)
    return without(bisect_left(range(len(theirs)), x=True, lo=1, key=lambda count: fits(without(count))))


def _identity(
    message: Message, ours: Mapping[str, Any], place: str, origin: str, retries: int = 0
) -> dict[str, Any]:
    copies = number_in(ours, ATTEMPT_HEADER)
    # Only a copy comes from elsewhere. The header of any other message is a producer's, or of before a redrive.
    first_origin = ours.get(ORIGIN_HEADER, origin) if copies else origin
    attempt = str(copies + retries + 1)
    return {ATTEMPT_HEADER: attempt, ORIGIN_HEADER: first_origin, **_key(message, ours, place)}


def _key(message: Message, ours: Mapping[str, Any], place: str) -> dict[str, Any]:
    key: dict[str, Any] = {FOR_HEADER: place}
    if message.id is not None:
        key[KEY_HEADER] = message.id
    if KEY_HEADER in ours and not ours.keys() & {FOR_HEADER, ATTEMPT_HEADER, ORIGIN_HEADER}:
        key[GIVEN_HEADER] = "1"
    return key


def reason_of(result: Result) -> str:
    """Why a delivery is a dead letter, in one line for its headers or its record."""
    if result.error is None:
        return result.outcome.value
    return described(result.error)
