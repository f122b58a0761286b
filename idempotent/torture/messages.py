"""The messages of a run, and what each makes its handler do."""

from __future__ import annotations

import json
import random
from enum import Enum
from typing import Final

from idempotent.message import Message


class Behaviour(Enum):
    """What a message makes its handler do."""

    PLAIN = "plain"
    SLOW = "slow"
    """The handler takes longer than a lease, which must be renewed meanwhile."""
    FLAKY = "flaky"
    """The handler sometimes fails before the effect."""
    UNDONE = "undone"
    """The handler sometimes fails after the effect, if the checker rolls it back."""
    POISON = "poison"
    """The handler always fails, so the message ends as a dead letter."""


_SHARES: Final = {
    Behaviour.SLOW: 0.0015,
    Behaviour.FLAKY: 0.01,
    Behaviour.UNDONE: 0.01,
    Behaviour.POISON: 0.0025,
}


def id_of(number: int) -> str:
    """The id of a message."""
    return f"m-{number}"


def behaviour_of(seed: int, number: int) -> Behaviour:
    """What a message makes its handler do; the same for the same seed."""
    place = random.Random(f"behaviour {seed} {number}").random()
    for behaviour, share in _SHARES.items():
        place -= share
        if place < 0:
            return behaviour
    return Behaviour.PLAIN


def message_of(subject: str, seed: int, number: int) -> Message:
    """The message with this number."""
    body = json.dumps({"number": number, "behaviour": behaviour_of(seed, number).value})
    return Message(subject, body.encode(), id=id_of(number))
