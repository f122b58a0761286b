"""ConfirmedProducer: reports for every message whether the broker confirmed it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from idempotent.adapters.kafka.brokers import Brokers
from idempotent.adapters.kafka.client import (
    OF_THE_BATCH,
    OF_THE_TOPIC,
    Callback,
    KafkaError,
    KafkaException,
    Producer,
    error_of,
    is_fatal,
    make_client,
)
from idempotent.adapters.kafka.records import ANY_PARTITION, Headers, Outgoing
from idempotent.logs import EventLog

log = EventLog(__name__)
_LOOK_S: Final = 0.5

# The record itself is refused. Every other error may go away by itself, and some come after the record was written.
_REFUSALS: Final = OF_THE_TOPIC | OF_THE_BATCH | {KafkaError.CLUSTER_AUTHORIZATION_FAILED}


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """Why the broker did not confirm a message.

    Attributes:
        reason: in one line.
        is_refused: the broker, or the client library, refused the message: the broker does not have it.
        is_shared: the broker refused it together with all others of its batch, and may have meant another one.
    """

    reason: str
    is_refused: bool = False
    is_shared: bool = False


OnReport: TypeAlias = Callable[[Unconfirmed | None], None]
"""Called with the error of a message; None: the broker confirmed it."""


class ConfirmedProducer:
    """A producer that is created at first use, and replaced after a fatal error.

    Belongs to the adapter's thread: reports arrive in `upkeep` and `flush`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._callbacks: Mapping[str, Callback] = {}
        self._client: Producer | None = None
        self._broken: list[Producer] = []
        self.brokers = Brokers(config["bootstrap.servers"])
        """Whether they answer, since `connect`; `upkeep` and `flush` update it."""

    def connect(self, *, fail_fast: bool) -> None:
        """Connect before the first message, and know from then on whether a broker answers.

        Raises:
            KafkaException: no broker answers, with `fail_fast`.
        """
        self.brokers = brokers = Brokers(self._config["bootstrap.servers"])
        self._callbacks = {"error_cb": brokers.on_error, "stats_cb": brokers.on_statistics}
        self._client = None
        client = self._made()
        if fail_fast:
            try:
                brokers.meet(client)
            except KafkaException:
                self._client = None
                raise

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
        record = (topic, value, key, headers)
        client = self._made()
        send(client, record, on_report, on_error=partial(self._replace_if_fatal, client), partition=partition)

    def count_partitions(self, topic: str, timeout_s: float) -> int:
        """How many partitions a topic has; 0: there is no such topic.

        Raises:
            KafkaException: the broker did not answer within `timeout_s` seconds.
        """
        return len(self._made().list_topics(topic, timeout_s).topics[topic].partitions)

    def upkeep(self) -> None:
        """Deliver the reports that have arrived."""
        self._serve(0.0)

    def flush(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds until all messages are reported."""
        until = time.monotonic() + timeout_s
        # The client library's `flush` goes on calling after a fatal error, with that error raised.
        while any(map(len, self._clients())) and (left_s := until - time.monotonic()) > 0:
            self._serve(min(left_s, _LOOK_S))

    def _clients(self) -> list[Producer]:
        return self._broken if self._client is None else [*self._broken, self._client]

    def _serve(self, wait_s: float) -> None:
        for client in self._clients():
            try:
                client.poll(wait_s)
            except KafkaException as error:  # raised instead of a call of `error_cb`
                self._replace_if_fatal(client, error.args[0])
        self._broken = [client for client in self._broken if len(client)]

    def _made(self) -> Producer:
        if self._client is None:
            self._client = make_client(Producer, self._config, self._callbacks)
        return self._client

    def _replace_if_fatal(self, client: Producer, error: KafkaError) -> None:
        # After a fatal error an idempotent producer never sends again, but reports what it has.
        if is_fatal(error) and client is self._client:
            log.error("kafka_producer_broken", extra={"error": error_of(error)})
            self._broken.append(client)
            self._client = None


def send(
    client: Producer,
    record: Outgoing,
    on_report: OnReport,
    *,
    on_error: Callable[[KafkaError], None] | None = None,
    partition: int = ANY_PARTITION,
) -> None:
    """Send without waiting. A message that cannot be queued is reported at once; `on_error` gets the errors first."""

    def tell(error: KafkaError) -> None:
        if on_error is not None:
            on_error(error)

    def report(error: KafkaError | None, _: Any) -> None:
        if error is None:
            on_report(None)
        else:
            tell(error)
            on_report(_unconfirmed(error, is_shared=_is_of_the_batch(error)))

    topic, value, key, headers = record
    try:
        client.produce(topic, value, key, partition, headers=headers, on_delivery=report)  # type: ignore[arg-type] # None is a value
    except KafkaException as error:
        tell(error.args[0])
        on_report(_unconfirmed(error.args[0], is_shared=False))
    except BufferError as error:
        on_report(Unconfirmed(error_of(error)))
    except (
        TypeError,
        ValueError,
    ) as error:  # a NUL in the topic's name, a header name that is not a string
        on_report(Unconfirmed(error_of(error), is_refused=True))


def _unconfirmed(error: KafkaError, *, is_shared: bool) -> Unconfirmed:
    return Unconfirmed(error_of(error), is_refused=error.code() in _REFUSALS, is_shared=is_shared)


def _is_of_the_batch(error: KafkaError) -> bool:
    # The client library says the second of the records that were refused beside an invalid one.
    return error.code() in OF_THE_BATCH or error.code() == KafkaError._INVALID_DIFFERENT_RECORD  # noqa: SLF001 - public
