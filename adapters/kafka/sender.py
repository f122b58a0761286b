"""KafkaSender: sends published messages, which are waited for, and copies, which are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from idempotent.adapters.copies import KEY_HEADER
from idempotent.adapters.kafka.client import KafkaException, KafkaMessage, Raw, error_of
from idempotent.adapters.kafka.options import producer_config
from idempotent.adapters.kafka.producer import ConfirmedProducer, OnReport
from idempotent.adapters.kafka.records import (
    ANY_PARTITION,
    copied_headers,
    encoded,
    first_partition,
    returned_headers,
)
from idempotent.errors import AdapterError, ConfigurationError
from idempotent.message import Message

_ALL: Final = ("all", "-1")


class KafkaSender:
    """A producer for `publish`, and one for copies, which wait for all replicas. With `acks="all"` they are the same.

    Args:
        security: the settings of every client.
        acks: what `publish` waits for.
        idempotent: the broker drops the client library's own duplicates; None: where it can.
        timeout_s: seconds within which the broker must confirm a message.
        own: the user's settings.

    Raises:
        ConfigurationError: unknown acks, or an idempotent producer that does not wait for all.
    """

    def __init__(
        self,
        security: Mapping[str, Any],
        *,
        acks: str,
        idempotent: bool | None,
        timeout_s: float,
        own: Mapping[str, Any],
    ) -> None:
        if acks not in (*_ALL, "1", "0"):
            raise ConfigurationError(f"acks must be 'all', 1 or 0, not {acks!r}")
        if idempotent and acks not in _ALL:
            raise ConfigurationError("idempotent_producer=True needs acks='all'")
        self._where = security["bootstrap.servers"]
        self._timeout_s = timeout_s
        self._copies = ConfirmedProducer(
            producer_config(security, "all", idempotent=idempotent is not False, timeout_s=timeout_s, own=own)
        )
        self._publisher = self._copies
        self._partitions: dict[str, int] = {}
        """How many partitions a topic has to which letters go back."""
        if acks not in _ALL:
            config = producer_config(security, acks, idempotent=False, timeout_s=timeout_s, own=own)
            self._publisher = ConfirmedProducer(config)

    def publish(self, messages: Sequence[Message]) -> None:
        """Send messages to their subjects and wait for all of them.

        Raises:
            AdapterError: the broker did not confirm one of them.
        """
        self._confirm(messages, self._send)

    def put_back(self, letter: Message) -> None:
        """Send a dead letter to its subject, in the partition that it came from, and wait for it.

        A partition that the topic does not have any more gives way to the one that the record's key names.

        Raises:
            AdapterError: the broker did not confirm it, or did not describe the topic.
        """
        topic = letter.subject
        if topic not in self._partitions:
            try:
                self._partitions[topic] = self._publisher.count_partitions(topic, self._timeout_s)
            except KafkaException as error:
                raise AdapterError(
                    f"Kafka at {self._where} did not describe {topic}: {error_of(error)}"
                ) from error
        self._confirm([letter], self._send_back)

    def _confirm(self, messages: Sequence[Message], send: Callable[[Message, OnReport], None]) -> None:
        reports: list[str | None] = []
        for message in messages:
            send(message, reports.append)
            self._publisher.upkeep()
        # The client library reports its own timeout a little earlier.
        self._publisher.flush(self._timeout_s + 1)
        silent = len(messages) - len(reports)
        reasons = [report for report in reports if report is not None]
        if reasons or silent:
            reason = reasons[0] if reasons else f"no answer within {self._timeout_s:g} s"
            to = ", ".join(dict.fromkeys(message.subject for message in messages))
            raise AdapterError(f"Kafka at {self._where} did not confirm a message for {to}: {reason}")

    def _send(self, message: Message, on_report: OnReport) -> None:
        headers = dict(message.headers)
        key = message.id.encode() if isinstance(message.id, str) else message.id
        if key is not None:
            headers[KEY_HEADER] = key
        came_with = message.raw.key() if isinstance(message.raw, KafkaMessage) else None
        self._publisher.send(
            message.subject, message.body, came_with or key, encoded(headers.items()), on_report
        )

    def _send_back(self, letter: Message, on_report: OnReport) -> None:
        raw: Raw = letter.raw
        first = first_partition(letter)
        self._publisher.send(
            letter.subject,
            raw.value(),
            raw.key(),
            returned_headers(letter),
            on_report,
            partition=first if first < self._partitions[letter.subject] else ANY_PARTITION,
        )

    def copy(self, topic: str, raw: Raw, headers: Mapping[str, Any], on_report: OnReport) -> None:
        """Send a copy; `on_report` is called in `upkeep` or `flush`."""
        self._copies.send(topic, raw.value(), raw.key(), copied_headers(raw, headers), on_report)

    def upkeep(self) -> None:
        """Deliver the reports that have arrived."""
        self._copies.upkeep()

    def flush(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds until all copies are reported."""
        self._copies.flush(timeout_s)
