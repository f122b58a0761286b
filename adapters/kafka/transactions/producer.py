"""TransactionalProducer: a client with one transactional id, replaced when it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from idempotent.adapters.kafka.client import KafkaException, Producer, TopicPartition, make_client

_SHORTEST_S: Final = 0.01
_PAUSE_S: Final = 1.0
_OFFSETS_S: Final = 5.0
_RETRY: Final = "retry.backoff.ms"
# The client library shortens each wait at random, by up to a fifth.
_SHORTEST_RETRY: Final = 0.7


class TransactionalProducer:
    """Waits no longer than it is told. Belongs to the adapter's thread.

    A new client with the same id ends the transaction of the previous one: a commit in progress is completed, any
    other transaction is aborted.

    Args:
        config: of the client, with its transactional id.

    Raises:
        ConfigurationError: librdkafka refuses the settings.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._retry_s = int(config.get(_RETRY, 100)) / 1000 * _SHORTEST_RETRY
        self.client: Producer = make_client(Producer, config)
        self._is_ready = False
        self._not_before = 0.0
        self._sending: _Call | None = None

    def is_ready(self, wait_s: float) -> bool:
        """Whether the client may begin a transaction; call repeatedly until it may.

        Raises:
            KafkaException: this client never will.
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
        """Add offsets to the transaction; call repeatedly until it returns True.

        The client library does not honour the timeout here, and if the broker is killed meanwhile its call may never
        return (seen with librdkafka 2.16.0). `renew` abandons it.

        Raises:
            KafkaException: the offsets were refused.
        """
        sending = self._sending or _Call(self.client.send_offsets_to_transaction, offsets, member, _OFFSETS_S)
        has_returned = sending.wait(wait_s)
        self._sending = None if has_returned else sending
        if sending.error is not None and has_returned:
            raise sending.error
        return has_returned

    def end(self, began: float) -> None:
        """Note the end of a transaction that began at this time; the next one may need a new client.

        When a connection is lost, the client library sends a request again after a wait, and does not report it. The
        first request may still reach the broker: it would commit or abort the next transaction of this client, or add
        old offsets to it. A new client has a new epoch, for which the broker refuses such a request. A transaction
        that was shorter than the wait has sent no request twice.
        """
        if time.monotonic() - began > self._retry_s:
            self.renew()

    def renew(self) -> None:
        """Replace the client, and abandon its call in progress."""
        self._sending = None
        if not self._is_ready:
            self._not_before = time.monotonic() + _PAUSE_S  # it failed at once, and the next one may too
        self.client = make_client(Producer, self._config)
        self._is_ready = False


class _Call:
    """A call of the client library in a thread, because it may never return. A caller that times out abandons it."""

    def __init__(self, function: Callable[..., object], *arguments: Any) -> None:
        self._ended = threading.Event()
        self.error: Exception | None = None
        thread = threading.Thread(target=self._run, args=(function, arguments), daemon=True)
        thread.name = "idempotent-kafka-call"
        thread.start()

    def wait(self, wait_s: float) -> bool:
        """Wait at most `wait_s` seconds. Whether the call has returned."""
        return self._ended.wait(wait_s)

    def _run(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        try:
            function(*arguments)
        except Exception as error:
            self.error = error
        finally:
            self._ended.set()
