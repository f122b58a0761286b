"""Member: one message of a group, with its claim and its handler's result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from idempotent.claims import Claim, ClaimRequest, Failure
from idempotent.keys import NO_KEY
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.processing.results import processed

_NO_CLAIM: Final = Claim(NO_KEY)


@dataclass(slots=True, eq=False)
class Member:
    """One message of a group, in the order of the call."""

    index: int
    message: Message
    request: ClaimRequest
    claim: Claim = _NO_CLAIM
    returned: Any = None
    """What the handler returned."""
    error: Exception | None = None
    """What the handler raised."""
    failure: Failure | None = None
    """What the store records of the error; None: the consumer ignores it."""


def place(member: Member) -> tuple[bytes, int]:
    """The sort key of a member: the partition and offset of its message."""
    partition, position = member.request.partition, member.request.position
    return (partition.hash if partition else b"", position.offset if position else 0)


def result_of(member: Member) -> Result:
    """The result of a member whose handler returned, or raised an exception that its consumer ignores."""
    return processed(member.returned) if member.error is None else Result(Outcome.IGNORED, error=member.error)
