"""KafkaSender: sends published messages, which are waited for, and copies, which are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from idempotent.adapters.answers import Answers
from idempotent.adapters.kafka.client import KafkaException, Raw, error_of
from idempotent.adapters.kafka.options import producer_config
from idempotent.adapters.kafka.producer import ConfirmedProducer, OnReport, Unconfirmed
from idempotent.adapters.kafka.records import (
    ANY_PARTITION,
    copied_headers,
    first_partition,
    outgoing,
    sent_back_headers,
)
from idempotent.errors import AdapterError, ConfigurationError
from idempotent.message import Message

_ALL: Final = ("all", "-1")
Sending: TypeAlias = Callable[[OnReport], None]
"""Sends one encoded message."""


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

    @property
    def connected(self) -> bool:
        """Whether a broker answers, since `connect`."""
        return self._publisher.brokers.is_up

    def connect(self, *, fail_fast: bool) -> None:
        """Connect before the first message is published.

        Raises:
            AdapterError: no broker answers, with `fail_fast`.
        """
        try:
            self._publisher.connect(fail_fast=fail_fast)
        except KafkaException as error:
            why = self._publisher.brokers.complaint or error_of(error)
            raise AdapterError(f"cannot connect to Kafka at {self._where}: {why}") from error

    def check(self) -> None:
        """Return if a broker answers, or may answer later.

        Raises:
            AdapterError: since `connect`, the brokers refuse the login, or their certificate is not trusted.
        """
        if self._publisher.brokers.fault is not None:
            raise AdapterError(f"Kafka at {self._where}: {self._publisher.brokers.fault}")

    def publish(self, messages: Sequence[Message]) -> None:
        """Send messages to their subjects and wait for all of them.

        Raises:
            PublishError: the broker did not confirm some of them.
        """
        self._confirm(messages, self._encoded)

    def put_back(self, letter: Message, source: str, group: str) -> None:
        """Send a dead letter, read for `source`, to its subject, in the partition that it came from, and wait for it.

        It is for this group alone.

        A partition that the topic does not have any more gives way to the one that the record's key names.

        Raises:
            PublishError: the broker did not confirm it, or did not describe the topic.
        """
        topic, answers = letter.subject, Answers([letter])
        if topic not in self._partitions:
            try:
                self._partitions[topic] = self._publisher.count_partitions(topic, self._timeout_s)
            except KafkaException as error:
                answers.lose([0], f"Kafka at {self._where} did not describe {topic}: {error_of(error)}")
                answers.check()
        self._confirm([letter], partial(self._encoded_back, source, group))

    def _confirm(self, messages: Sequence[Message], encode: Callable[[Message], Sending]) -> None:
        answers = Answers(messages)
        sendings = answers.made(encode)
        failed = self._outcomes(sendings)
        if len(messages) > 1:
            # Nothing of a refused batch was written. Alone each shows whether the broker meant it.
            for place in [place for place, failure in failed.items() if failure.is_shared]:
                del failed[place]
                failed |= self._outcomes({place: sendings[place]})
        for place, failure in failed.items():
            reason = f"Kafka at {self._where}: {failure.reason}"
            if failure.is_refused:
                answers.refuse(place, reason)
            else:
                brokers = self._publisher.brokers
                complaint = brokers.fault or brokers.complaint
                answers.lose([place], reason if complaint is None else f"{reason}: {complaint}")
        answers.check()

    def _outcomes(self, sendings: Mapping[int, Sending]) -> dict[int, Unconfirmed]:
        """Send messages, and wait for all of them. Returns those that are not confirmed, by their places."""
        silent = Unconfirmed(f"no answer within {self._timeout_s:g} s")
        failed = dict.fromkeys(sendings, silent)

        def report(place: int, failure: Unconfirmed | None) -> None:
            if failure is None:
                failed.pop(place, None)
            else:
                failed[place] = failure

        for place, send in sendings.items():
            send(partial(report, place))
            self._publisher.upkeep()
        # The client library reports its own timeout a little earlier.
        self._publisher.flush(self._timeout_s + 1)
        return dict(sorted(failed.items()))

    def _encoded(self, message: Message) -> Sending:
        return partial(self._publisher.send, *outgoing(message))

    def _encoded_back(self, source: str, group: str, letter: Message) -> Sending:
        raw: Raw = letter.raw
        first = first_partition(letter, source)
        return partial(
            self._publisher.send,
            letter.subject,
            raw.value(),
            raw.key(),
            sent_back_headers(letter, source, group),
            partition=first if first < self._partitions[letter.subject] else ANY_PARTITION,
        )

    def copy(self, topic: str, raw: Raw, headers: Mapping[str, Any], on_report: OnReport) -> None:
        """Send a copy; `on_report` is called in `upkeep` or `flush`."""
        self._copies.send(topic, raw.value(), raw.key(), copied_headers(raw, headers), on_report)

    def upkeep(self) -> None:
        """Deliver the reports that have arrived."""
        self._copies.upkeep()
        if self._publisher is not self._copies:
            self._publisher.upkeep()

    def flush(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds until all copies are reported."""
        self._copies.flush(timeout_s)
