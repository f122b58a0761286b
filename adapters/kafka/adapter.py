"""KafkaAdapter: topics of Kafka, with offsets committed behind the store's verdicts."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from idempotent.adapters.base import Adapter, Delivery
from idempotent.adapters.copies import dead_letter_headers, delayed_headers
from idempotent.adapters.kafka.attempt import Refusal
from idempotent.adapters.kafka.commits import Commits, OffsetCommits
from idempotent.adapters.kafka.group import KafkaGroup
from idempotent.adapters.kafka.lanes import Record
from idempotent.adapters.kafka.modes import check_consumers, check_semantics
from idempotent.adapters.kafka.offsets import StoredOffsets
from idempotent.adapters.kafka.options import (
    Ordering,
    Semantics,
    check_own,
    consumer_config,
    place_of,
    security_config,
    transactional_config,
)
from idempotent.adapters.kafka.outputs import Produced, outputs_of
from idempotent.adapters.kafka.partition import Partition, Token, limits_of
from idempotent.adapters.kafka.records import DUE_HEADER, origin_text
from idempotent.adapters.kafka.sender import KafkaSender
from idempotent.adapters.kafka.transactions import Transactions
from idempotent.choices import choice
from idempotent.consumer import Consumer
from idempotent.errors import ConfigurationError, OutputError
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.policy import Backoff

__all__ = ["KafkaAdapter", "Ordering", "Semantics"]

log = logging.getLogger(__name__)
# How long a wake may wait for the client.
_SLICE_S: Final = 0.05
_COPY_AGAIN: Final = Backoff(initial_s=2.0, maximum_s=300.0)
_CLOSE_S: Final = 5.0


class KafkaAdapter(Adapter):
    """Receive from topics, in the consumer group that is the consumers' `group`; publish to topics.

    The group's offset of a partition follows the last message before which all are settled. A delivery's epoch is
    the assignment of its partition: after a rebalance its settlement is dropped, and the new owner gets the message.

    Args:
        url_or_bootstrap: `host:9092,host:9092`, or `kafka://user:password@host:9092,host:9092`.
        semantics: `at_least_once`: offsets follow the checkers' verdicts. `effectively_once`: the same, and each
            checker must remember what is done. `at_most_once`: they are committed before the handlers run, and what
            fails is gone. `exactly_once`: in one transaction of Kafka with the messages that the handlers return,
            which are sent to their `subject`s; goes with an `AttemptChecker`.
        transactional_id: of `exactly_once`; a process that begins with it ends the one before it. None: a new one,
            for this process alone.
        ordering: which messages of a partition wait for each other: all (`partition`), those with the same Kafka
            key (`key`), or none.
        max_in_flight_per_partition: messages of one partition handed out at once. None: 1 with the ordering
            `partition`, else 1000. More than 1 with `partition` fills batches, and keeps the order while a Worker has
            one thread and no message fails or waits for its key; nothing is handed out after one that failed until it
            is settled.
        max_pending_per_partition: received and unfinished messages at which a partition is paused.
        commit_interval_s: seconds between commits.
        commit_every: settled messages after which a commit comes sooner.
        dead_letter_topic: for the dead letters of all topics; None: of each topic `<topic>.dlq`. It must exist.
        retry_topic: what failed waits in the topic `<topic>.<group>.retry`, which must exist, and holds back nothing.
        acks: what `publish` waits for: `all`, `1` or `0`. Dead letters always wait for all.
        idempotent_producer: the broker drops what the client library sends twice. None: with `acks="all"`.
        publish_timeout_s: seconds that the broker has to take a message.
        fail_fast: `open` raises when no broker answers, and `receive` when a topic is missing or access denied; else
            both are waited for, with a warning.
        security_protocol: as librdkafka's `security.protocol`; with a user name `SASL_SSL` unless given.
        sasl_mechanism: `PLAIN` unless given.
        sasl_username: wins over the URL's.
        sasl_password: wins over the URL's.
        ssl_ca_location: a file with certificates.
        client_config: more of librdkafka's settings, for all its clients.
        consumer_config: more of them for the consumer. Automatic commits are refused.
        producer_config: more of them for the producer.

    Raises:
        ConfigurationError: settings that cannot work, or cannot work together.
    """

    token_type = Token

    def __init__(
        self,
        url_or_bootstrap: str,
        *,
        semantics: Semantics | str = Semantics.AT_LEAST_ONCE,
        ordering: Ordering | str = Ordering.PARTITION,
        transactional_id: str | None = None,
        max_in_flight_per_partition: int | None = None,
        max_pending_per_partition: int = 2000,
        commit_interval_s: float = 1.0,
        commit_every: int = 1000,
        dead_letter_topic: str | None = None,
        retry_topic: bool = False,
        acks: str | int = "all",
        idempotent_producer: bool | None = None,
        publish_timeout_s: float = 30.0,
        fail_fast: bool = False,
        security_protocol: str | None = None,
        sasl_mechanism: str | None = None,
        sasl_username: str | None = None,
        sasl_password: str | None = None,
        ssl_ca_location: str | None = None,
        client_config: Mapping[str, Any] | None = None,
        consumer_config: Mapping[str, Any] | None = None,
        producer_config: Mapping[str, Any] | None = None,
    ) -> None:
        """Check the settings; connect in `open`."""
        place = place_of(url_or_bootstrap)
        self._semantics = choice(Semantics, semantics, "semantics")
        self._limits = limits_of(
            choice(Ordering, ordering, "ordering"), max_in_flight_per_partition, max_pending_per_partition
        )
        if commit_interval_s <= 0 or commit_every < 1:
            raise ConfigurationError("commit_interval_s must be above 0, and commit_every at least 1")
        check_semantics(
            self._semantics,
            self._limits.ordering,
            retry_topic=retry_topic,
            transactional_id=transactional_id,
            own={**(client_config or {}), **(consumer_config or {})},
        )
        self._transactional_id = transactional_id
        self._publish_timeout_s = publish_timeout_s
        self._producer_config = dict(producer_config or {})
        self._retries_elsewhere = retry_topic
        self._retry_topics: dict[str, str] = {}
        self._stored = StoredOffsets(())
        self._commit_interval_s = commit_interval_s
        # Outputs that wait for their transaction are pending: a paused partition must not wait for more of them.
        is_transactional = self._semantics is Semantics.EXACTLY_ONCE
        self._commit_every = (
            min(commit_every, max_pending_per_partition) if is_transactional else commit_every
        )
        self._dead_letter_topic = dead_letter_topic
        self._fail_fast = fail_fast
        self._own = dict(consumer_config or {})
        for name, own in (
            ("client_config", client_config),
            ("consumer_config", consumer_config),
            ("producer_config", producer_config),
        ):
            check_own(name, own or {})
        self._security = {
            **security_config(
                place,
                protocol=security_protocol,
                mechanism=sasl_mechanism,
                username=sasl_username,
                password=sasl_password,
                ca_location=ssl_ca_location,
            ),
            **(client_config or {}),
        }
        self._sender = KafkaSender(
            self._security,
            acks=str(acks),
            idempotent=idempotent_producer,
            timeout_s=publish_timeout_s,
            own=producer_config or {},
        )
        self._group: KafkaGroup | None = None
        self._woken = threading.Event()

    def open(self, consumers: Sequence[Consumer]) -> None:
        groups = sorted({consumer.group for consumer in consumers})
        if len(groups) != 1:
            raise ConfigurationError(
                f"a KafkaAdapter is one member of one consumer group, and these are of {', '.join(groups)}: "
                "run one worker for each group"
            )
        check_consumers(self._semantics, self._limits.ordering, consumers)
        self.close()
        self._stored = StoredOffsets(consumers)
        subjects = list(dict.fromkeys(consumer.subject for consumer in consumers))
        if self._retries_elsewhere:
            self._retry_topics = {subject: f"{subject}.{groups[0]}.retry" for subject in subjects}
        self._group = KafkaGroup(
            consumer_config(self._security, groups[0], self._own),
            self._security,
            subjects,
            self._limits,
            {topic: subject for subject, topic in self._retry_topics.items()},
            self._stored,
            self._commits(groups[0]),
            commit_interval_s=self._commit_interval_s,
            commit_every=self._commit_every,
            fail_fast=self._fail_fast,
        )

    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        group = self._member()
        until = time.monotonic() + timeout_s
        self._sender.upkeep()
        deliveries = group.take(limit)
        if len(deliveries) < limit or group.needs_upkeep:
            group.fetch(0.0, self._woken)
            deliveries += group.take(limit - len(deliveries))
        while not deliveries and (left_s := until - time.monotonic()) > 0 and not self._woken.is_set():
            group.fetch(min(left_s, _SLICE_S), self._woken)
            self._sender.upkeep()
            deliveries = group.take(limit)
        self._woken.clear()
        # A fetch may have ended the epoch of what was taken before it; that comes again.
        deliveries = [delivery for delivery in deliveries if delivery.token.partition.is_open]
        if self._semantics is Semantics.AT_MOST_ONCE:
            return group.assignment.give_up(group.consumer, deliveries)
        return deliveries

    def _acknowledge(self, delivery: Delivery, result: Result) -> bool:
        token: Token = delivery.token
        if not token.partition.settled(token):
            return False
        if self._semantics is Semantics.EXACTLY_ONCE and result.outcome is Outcome.PROCESSED:
            refused = self._keep_outputs(delivery, result.value)
            if refused is not None:
                self._bury(delivery, refused)
                return True
        self._finish(token.partition, token.record)
        return True

    def _delay(self, delivery: Delivery, after_s: float) -> bool:
        token: Token = delivery.token
        partition, record = token.partition, token.record
        if not partition.settled(token):
            return False
        if partition.subject in self._retry_topics:
            headers = delayed_headers(delivery.message, origin_text(record.raw))
            headers[DUE_HEADER] = round((time.time() + after_s) * 1000)
            self._copy(partition, record, self._retry_topics[partition.subject], headers)
        elif self._semantics is not Semantics.AT_MOST_ONCE:
            partition.again(record, time.monotonic() + after_s)
        else:
            log.warning("message_given_up", extra={"position": origin_text(record.raw)})
            self._finish(partition, record)
        return True

    def _dead_letter(self, delivery: Delivery, result: Result) -> bool:
        token: Token = delivery.token
        if not token.partition.settled(token):
            return False
        self._bury(delivery, result)
        return True

    def _give_back(self, delivery: Delivery) -> bool:
        token: Token = delivery.token
        if not token.partition.settled(token):
            return False
        token.partition.again(token.record, 0.0)
        return True

    def publish(self, message: Message) -> None:
        """Send to the topic of its `subject`, its id as `x-idempotent-key` and as Kafka key.

        A message that came from Kafka keeps its Kafka key.
        """
        self._sender.publish([message])

    def publish_many(self, messages: Sequence[Message]) -> None:
        self._sender.publish(messages)

    def dead_letter_subject(self, subject: str) -> str:
        return self._dead_letter_topic or f"{subject}.dlq"

    @property
    def connected(self) -> bool:
        """Whether a broker answers, and the group has let this process in."""
        return self._group is not None and self._group.connected

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            # What was dead a moment ago need not come again.
            self._sender.flush(_CLOSE_S)
            group.close()

    def _commits(self, group: str) -> Commits:
        if self._semantics is not Semantics.EXACTLY_ONCE:
            return OffsetCommits()
        config = transactional_config(
            self._security,
            self._transactional_id or f"{group}-{uuid.uuid4()}",
            timeout_s=self._publish_timeout_s,
            own=self._producer_config,
        )
        return Transactions(
            config, is_ours_alone=self._transactional_id is None, on_refused=self._bury_refused
        )

    def _keep_outputs(self, delivery: Delivery, value: Any) -> Result | None:
        """Keep what the handler returned until the commit; what cannot be sent makes the message a dead letter."""
        token, message = delivery.token, delivery.message
        try:
            outputs = outputs_of(message, value)
        except OutputError as error:
            log.warning("output_refused", extra={"id": message.id, "error": str(error)})
            return Result(Outcome.REJECTED, error=error)
        if outputs:
            token.partition.outputs.add(Produced(message, token.record.raw, outputs))
        return None

    def _bury(self, delivery: Delivery, result: Result) -> None:
        token, message = delivery.token, delivery.message
        partition, record = token.partition, token.record
        headers = dead_letter_headers(message, origin_text(record.raw), result)
        self._copy(
            partition,
            record,
            self.dead_letter_subject(partition.subject),
            headers,
            lambda: self._stored.skip(partition.subject, message.position),
        )

    def _bury_refused(self, produced: Produced, refusal: Refusal) -> None:
        """Send a dead letter of a message that is finished, but whose outputs the broker does not take."""
        partition = refusal.partition
        result = Result(Outcome.REJECTED, error=OutputError(refusal.reason))
        headers = dead_letter_headers(produced.message, origin_text(produced.raw), result)
        topic = self.dead_letter_subject(partition.subject)

        def report(error: str | None) -> None:
            if error is None:
                partition.outputs.give_up(produced)
            else:
                # Perhaps the outputs are taken then.
                produced.refused_until = time.monotonic() + _COPY_AGAIN.initial_s
                log.error("copy_failed", extra={"topic": topic, "error": error})

        self._sender.copy(topic, produced.raw, headers, report)

    def _copy(
        self,
        partition: Partition,
        record: Record,
        topic: str,
        headers: Mapping[str, Any],
        then: Callable[[], bool] = lambda: True,
    ) -> None:
        """Send a copy; the offset is finished when the broker has it, in a later `receive`, and `then` says yes."""

        def report(error: str | None) -> None:
            if error is not None:
                log.error("copy_failed", extra={"topic": topic, "error": error})
            if not partition.is_open:
                return
            if error is None and then():
                self._finish(partition, record)
            else:
                record.refusals += 1
                partition.again(record, time.monotonic() + _COPY_AGAIN.delay_s(record.refusals))

        self._sender.copy(topic, record.raw, headers, report)

    def _finish(self, partition: Partition, record: Record) -> None:
        partition.finish(record)
        if self._group is not None:
            self._group.assignment.count_finished()

    def _member(self) -> KafkaGroup:
        if self._group is None:
            raise ConfigurationError("open() comes before receive()")
        return self._group
