"""ConfirmedProducer: reports for every message whether the broker confirmed it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from idempotent.adapters.kafka.client import KafkaError, KafkaException, Producer, error_of, make_client
from idempotent.adapters.kafka.records import ANY_PARTITION, Headers

log = logging.getLogger(__name__)

OnReport: TypeAlias = Callable[[str | None], None]
"""Called with the error of a message; None: the broker confirmed it."""


class ConfirmedProducer:
    """A producer that is created at first use, and replaced after a fatal error.

    Belongs to the adapter's thread: reports arrive in `upkeep` and `flush`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._client: Producer | None = None

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        on_report: OnReport,
        *,
        partition: int = ANY_PARTITION,
    ) -> None:
        """Send without waiting. A message that cannot be queued is reported at once."""

        def report(error: KafkaError | None, _: Any) -> None:
            self._forget_if_fatal(error)
            on_report(None if error is None else error_of(error))

        try:
            self._made().produce(topic, value, key, partition, headers=headers, on_delivery=report)  # type: ignore[arg-type] # None is a value
        except (KafkaException, BufferError) as error:
            self._forget_if_fatal(error.args[0] if isinstance(error, KafkaException) else None)
            on_report(error_of(error))

    def count_partitions(self, topic: str, timeout_s: float) -> int:
        """How many partitions a topic has; 0: there is no such topic.

        Raises:
            KafkaException: the broker did not answer within `timeout_s` seconds.
        """
        return len(self._made().list_topics(topic, timeout_s).topics[topic].partitions)

    def upkeep(self) -> None:
        """Deliver the reports that have arrived."""
        if self._client is not None:
            self._client.poll(0)

    def flush(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds until all messages are reported."""
        if self._client is not None:
            self._client.flush(timeout_s)

    def _made(self) -> Producer:
        if self._client is None:
            self._client = make_client(Producer, self._config)
        return self._client

    def _forget_if_fatal(self, error: KafkaError | None) -> None:
        # After a fatal error an idempotent producer never sends again.
        if error is not None and error.fatal():
            log.error("kafka_producer_broken", extra={"error": error_of(error)})
            self._client = None
