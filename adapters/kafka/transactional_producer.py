"""TransactionalProducer: a client under one transactional id, made anew when it broke."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from idempotent.adapters.kafka.call import Call
from idempotent.adapters.kafka.client import KafkaException, Producer, TopicPartition, make_client

_SHORTEST_S: Final = 0.01
_PAUSE_S: Final = 1.0
_OFFSETS_S: Final = 5.0


class TransactionalProducer:
    """Waits for nothing longer than it is told. Belongs to the adapter's thread.

    A new client under the same id ends the transaction that the one before it has left: what was on its way to be
    committed is committed then, and the rest is aborted.

    Args:
        config: of the client, with its transactional id.

    Raises:
        ConfigurationError: librdkafka does not take the settings.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Connect by itself and later."""
        self._config = config
        self.client: Producer = make_client(Producer, config)
        self._is_ready = False
        self._not_before = 0.0
        self._sending: Call | None = None

    def is_ready(self, wait_s: float) -> bool:
        """Whether it may begin a transaction; asked again and again, it becomes so.

        Raises:
            KafkaException: it will not, as it is.
        """
        if not self._is_ready:
            if time.monotonic() < self._not_before:
                return False
            try:
                self.client.init_transactions(max(wait_s, _SHORTEST_S))
            except KafkaException as error:
                if error.args[0].retriable():
                    return False
                raise
            self._is_ready = True
        return True

    def send_offsets(self, offsets: list[TopicPartition], member: Any, wait_s: float) -> bool:
        """Whether the transaction has these offsets; asked again and again, it gets them.

        The client library takes no limit of ours seriously here, and when the broker is killed meanwhile its call may
        never come back (seen with librdkafka 2.16.0). `renew` forgets it.

        Raises:
            KafkaException: it did not get them.
        """
        sending = self._sending or Call(self.client.send_offsets_to_transaction, offsets, member, _OFFSETS_S)
        is_over = sending.wait(wait_s)
        self._sending = None if is_over else sending
        if sending.error is not None and is_over:
            raise sending.error
        return is_over

    def renew(self) -> None:
        """Forget the client, and whatever it still had in hand."""
        self._sending = None
        if not self._is_ready:
            self._not_before = time.monotonic() + _PAUSE_S  # it broke at once, and so may the next one
        self.client = make_client(Producer, self._config)
        self._is_ready = False
