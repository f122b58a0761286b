"""The settings of RabbitMqAdapter, checked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from idempotent.errors import ConfigurationError

_MOST_PREFETCH: Final = 65_535


class AckMode(Enum):
    """When the broker is told that a message is done."""

    MANUAL = "manual"
    """Each message alone, after the store's verdict."""
    BATCHED = "batched"
    """After the store's verdict, many at once. A crash causes more messages to be delivered again."""
    AUTO = "auto"
    """Before the handler sees it: at most once. A crash loses the unfinished messages."""


class QueueType(Enum):
    """The type of the queues that the adapter declares."""

    CLASSIC = "classic"
    QUORUM = "quorum"
    """Replicated, and with a delivery limit: 20 by default since RabbitMQ 4.0."""


@dataclass(frozen=True, slots=True)
class Consuming:
    """How messages are consumed and acknowledged. `RabbitMqAdapter` explains each attribute.

    Raises:
        ConfigurationError: a number is out of its range.
    """

    ack: AckMode
    ack_batch: int
    ack_interval_s: float
    prefetch: int
    per_channel_prefetch: bool
    pull: bool

    def __post_init__(self) -> None:
        if not 1 <= self.prefetch <= _MOST_PREFETCH:
            raise ConfigurationError(f"prefetch must be from 1 to {_MOST_PREFETCH}, not {self.prefetch}")
        if self.ack_batch < 1:
            raise ConfigurationError(f"ack_batch must be at least 1, not {self.ack_batch}")
        if self.ack_interval_s <= 0:
            raise ConfigurationError(f"ack_interval_s must be positive, not {self.ack_interval_s}")
