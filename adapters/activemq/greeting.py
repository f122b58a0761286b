"""What the broker's greeting says: who it is, and how often it wants to hear from us."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from idempotent.adapters.activemq.frames import Frame
from idempotent.errors import AdapterError

_VERSION: Final = "1.2"
# A beat is due long before the peer expects it, because ActiveMQ allows no delay at all by default.
_BEATS_PER_INTERVAL: Final = 3
# A connection on which nothing came for so many intervals is lost.
_SILENT_INTERVALS: Final = 2


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """What both sides have agreed on.

    Attributes:
        beat_after_s: send something after so many silent seconds; None: never.
        silence_s: give up after hearing nothing for so long; None: never.
    """

    beat_after_s: float | None
    silence_s: float | None


def heartbeats(greeting: Frame, asked_s: float) -> Heartbeats:
    """What the broker makes of the interval that we asked for."""
    sends_ms, wants_ms = (int(word) for word in greeting.headers.get("heart-beat", "0,0").split(","))
    return Heartbeats(
        beat_after_s=asked_s / _BEATS_PER_INTERVAL if wants_ms else None,
        silence_s=_SILENT_INTERVALS * max(asked_s, sends_ms / 1000) if sends_ms else None,
    )


def check_server(greeting: Frame, where: str) -> None:
    """See whether this is a broker that the adapter knows.

    Raises:
        AdapterError: it is not.
    """
    server = greeting.headers.get("server", "")
    if "artemis" in server.lower():
        raise AdapterError(
            f"{where} is {server}. This adapter is for ActiveMQ Classic: with Artemis ids change at every "
            "connection, and acknowledgements do not wait for their transaction"
        )
    if greeting.headers.get("version") != _VERSION:
        raise AdapterError(f"{where} does not speak STOMP {_VERSION}")
