"""The settings of RabbitMqAdapter, checked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from idempotent.errors import ConfigurationError

MOST_PREFETCH: Final = 65_535
_PREFETCH: Final = 200
_LARGEST_BATCH: Final = 64


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

    Attributes:
        prefetch: None: as many as the worker can take.
        ack_batch: None: half the prefetch.

    Raises:
        ConfigurationError: a number is out of its range.
    """

    ack: AckMode
    ack_batch: int | None
    ack_interval_s: float
    prefetch: int | None
    per_channel_prefetch: bool
    pull: bool

    def __post_init__(self) -> None:
        if self.prefetch is not None and not 1 <= self.prefetch <= MOST_PREFETCH:
            raise ConfigurationError(f"prefetch must be from 1 to {MOST_PREFETCH}, not {self.prefetch}")
        if self.ack_batch is not None and self.ack_batch < 1:
            raise ConfigurationError(f"ack_batch must be at least 1, not {self.ack_batch}")
        if self.ack_interval_s <= 0:
            raise ConfigurationError(f"ack_interval_s must be positive, not {self.ack_interval_s}")

    def window(self, capacity: int | None) -> Window:
        """The numbers for a worker that takes `capacity` deliveries at once; None: it does not say."""
        prefetch = self.prefetch
        if prefetch is None:
            # Finished deliveries that wait for their batch occupy a part of the prefetch.
            waiting = (self.ack_batch or _LARGEST_BATCH) if self.ack is AckMode.BATCHED else 0
            wanted = _PREFETCH if capacity is None else capacity + waiting
            prefetch = min(wanted, MOST_PREFETCH)
        batch = self.ack_batch or max(min(_LARGEST_BATCH, prefetch // 2), 1)
        grows = self.prefetch is None and not self.per_channel_prefetch and not self.pull
        return Window(prefetch, batch, grows)


@dataclass(frozen=True, slots=True)
class Window:
    """How many deliveries of a queue may be unacknowledged at once.

    Attributes:
        prefetch: the number at the beginning.
        ack_batch: deliveries for one acknowledgement.
        grows: whether it may grow while deliveries wait for something else than a free handler.
    """

    prefetch: int
    ack_batch: int
    grows: bool
