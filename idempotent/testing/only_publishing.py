"""OnlyPublishing: an adapter around another one, for a test or a measurement of what a relay publishes."""

from __future__ import annotations

from collections.abc import Sequence

from idempotent.adapters.base import Adapter, Delivery
from idempotent.consumer import AnyConsumer
from idempotent.errors import AdapterError
from idempotent.message import Message
from idempotent.outcomes import Result


class OnlyPublishing(Adapter):
    """Publishes through another adapter, and receives nothing. Override `publish_many` to see what is confirmed.

    Args:
        adapter: the adapter that it passes everything on to.
    """

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter

    @property
    def connected(self) -> bool:
        return self.adapter.connected

    def open(self, consumers: Sequence[AnyConsumer]) -> None:
        self.adapter.open(consumers)

    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        """Let the other adapter do its upkeep.

        Raises:
            AdapterError: the other adapter failed, or was opened with consumers and received a message.
        """
        if self.adapter.receive(limit, timeout_s):
            raise AdapterError(
                "an adapter that only publishes has received a message: open it without consumers"
            )
        return []

    def publish(self, message: Message) -> None:
        self.publish_many([message])

    def publish_many(self, messages: Sequence[Message]) -> None:
        self.adapter.publish_many(messages)

    def close(self) -> None:
        self.adapter.close()

    # It returns no deliveries, so these are never called for one of its own: False says so of any other.

    def _acknowledge(self, delivery: Delivery, result: Result) -> bool:
        del delivery, result
        return False

    def _delay(self, delivery: Delivery, after_s: float) -> bool:
        del delivery, after_s
        return False

    def _dead_letter(self, delivery: Delivery, result: Result) -> bool:
        del delivery, result
        return False

    def _give_back(self, delivery: Delivery) -> bool:
        del delivery
        return False
