"""The names of what is measured of the outbox, as the targets look for it."""

from __future__ import annotations

from typing import Final

SENDS: Final = (0, 1, 10)
WAITING: Final = (1_000, 1_000_000)
BATCH: Final = 500
RELAY: Final = "Relay"
PEER: Final = "faststream-outbox"


def with_outbox(where: str) -> str:
    """The place of the figures: apart from those of the same database in the other parts, of other rounds."""
    return f"{where} with an outbox"


def sender(messages: int) -> str:
    """A transactional handler that sends so many messages."""
    return f"handler that sends {messages}"


def relay_to(broker: str, who: str = RELAY) -> str:
    """A relay with many messages to publish."""
    return f"{who} to {broker}"


def idle_relay_to(broker: str, who: str = RELAY) -> str:
    """A relay with one message at a time, from the commit to the confirm."""
    return f"{who} to {broker}, idle, from the commit to the confirm"


def read_of(waiting: int) -> str:
    """A read of a relay, for which so many messages wait."""
    return f"read of a relay, {waiting:,} waiting"
