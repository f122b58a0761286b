"""Messages that no handler understands: broken bodies under headers that lie."""

from __future__ import annotations

import random

from idempotent import Message

_NAMES = [
    *("x-idempotent-attempt", "x-idempotent-due", "x-idempotent-origin", "x-idempotent-cut"),
    *("x-death", "x-delivery-count", "JMSXGroupID", "a:b", "h"),
]
_BODIES = [
    b"",
    b"{",
    b"null",
    b"\0\0",
    b"[" * 500,
    b"\xff\xfe",
    b'{"n": null}',
    b"9" * 5000,
    b"\n\n\0MESSAGE\n\n\0",
]


def malformed(subject: str, number: int, rng: random.Random) -> Message:
    """One of them; its header `which` is its number."""
    headers = {
        name: rng.choice(["", "-1", "9" * 400, "%FF", "\u20ac", "x" * 300]) for name in rng.sample(_NAMES, 2)
    }
    if number % 10 == 0:
        headers["x-idempotent-key-quoted"] = "%FF"
    headers["which"] = f"{number}"
    body = rng.choice([*_BODIES, rng.randbytes(rng.randrange(1, 50))])
    return Message(subject, body, id=f"malformed-{number}", headers=headers)
