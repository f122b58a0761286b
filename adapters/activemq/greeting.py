"""The broker's CONNECTED frame: the kind of server, and the heartbeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from idempotent.adapters.activemq.frames import Frame
from idempotent.errors import AdapterError

_VERSION: Final = "1.2"
# Beats are sent more often than agreed, because ActiveMQ tolerates no delay by default.
_BEATS_PER_INTERVAL: Final = 3
# A connection is lost after this many silent intervals.
_SILENT_INTERVALS: Final = 2


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """The agreed heartbeats.

    Attributes:
        beat_after_s: seconds without a sent frame after which a heartbeat is due; None: never.
        silence_s: seconds without a received byte after which the connection is lost; None: never.
    """

    beat_after_s: float | None
    silence_s: float | None


def heartbeats(greeting: Frame, asked_s: float) -> Heartbeats:
    """The heartbeats that the broker agreed to; `asked_s` was the requested interval."""
    sends_ms, wants_ms = (int(word) for word in greeting.headers.get("heart-beat", "0,0").split(","))
    return Heartbeats(
        beat_after_s=asked_s / _BEATS_PER_INTERVAL if wants_ms else None,
        silence_s=_SILENT_INTERVALS * max(asked_s, sends_ms / 1000) if sends_ms else None,
    )


def check_server(greeting: Frame, where: str) -> None:
    """Check that the server is a supported one.

    Raises:
        AdapterError: it is Artemis, or does not speak STOMP 1.2.
    """
    server = greeting.headers.get("server", "")
    if "artemis" in server.lower():
        raise AdapterError(
            f"{where} is {server}. This adapter supports ActiveMQ Classic only: Artemis changes message ids at every "
            "connection, and applies acknowledgements before their transaction commits"
        )
    if greeting.headers.get("version") != _VERSION:
        raise AdapterError(f"{where} does not speak STOMP {_VERSION}")
