"""The choices of RabbitMqAdapter that have names."""

from __future__ import annotations

from enum import Enum


class AckMode(Enum):
    """When the broker is told that a message is done."""

    MANUAL = "manual"
    """Each message by itself, after the store's verdict."""
    BATCHED = "batched"
    """After the store's verdict, many with one word. A crash widens what comes again, and nothing else."""
    AUTO = "auto"
    """Before the handler sees it: at most once. What a crash finds unfinished is lost."""


class QueueType(Enum):
    """Of the queues that the adapter declares."""

    CLASSIC = "classic"
    QUORUM = "quorum"
    """Replicated, and with a delivery limit: 20 by default since RabbitMQ 4.0."""
