"""KafkaAdapter: the client of a Kafka cluster, which commits offsets after the store's verdicts.

Long because all settings are documented where a user gives them.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from idempotent.adapters.base import Adapter, Delivery, subjects_of
from idempotent.adapters.copies import (
    CUT_HEADER,
    UntakenCopies,
    dead_letter_headers,
    delayed_headers,
)
from idempotent.adapters.kafka.assignment import Assignment
from idempotent.adapters.kafka.client import AdminClient, make_client
from idempotent.adapters.kafka.commits import Commits, OffsetCommits
from idempotent.adapters.kafka.findings import kafka_findings
from idempotent.adapters.kafka.group import KafkaGroup, group_of
from idempotent.adapters.kafka.offsets import StoredOffsets
from idempotent.adapters.kafka.options import (
    Ordering,
    Semantics,
    bootstrap_of,
    check_consumers,
    check_own,
    check_semantics,
    check_topics,
    consumer_config,
    login_in,
    reset_policy,
    security_config,
    transactional_config,
)
from idempotent.adapters.kafka.ordered_queues import Record
from idempotent.adapters.kafka.outputs import Produced
from idempotent.adapters.kafka.partition import Partition, Token, limits_of
from idempotent.adapters.kafka.producer import Unconfirmed
from idempotent.adapters.kafka.records import DUE_HEADER, origin_text, ours_of
from idempotent.adapters.kafka.resets import Resets
from idempotent.adapters.kafka.sender import KafkaSender
from idempotent.adapters.kafka.topics import TopicIds
from idempotent.adapters.kafka.transactions.fences import KafkaFences
from idempotent.adapters.kafka.transactions.open_transaction import Refusal
from idempotent.adapters.kafka.transactions.transactions import Transactions
from idempotent.admin import Finding
from idempotent.consumer import AnyConsumer
from idempotent.errors import ConfigurationError, OutputError
from idempotent.forks import free_in_child
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.observe.log_lines import about_message
from idempotent.outcomes import Outcome, Result
from idempotent.policy import Backoff
from idempotent.validation import check_types, choice

log = EventLog(__name__)

_CLOSE_S: Final = 5.0
_LOOK_S: Final = 0.1
_SKIP_S: Final = 1.0
_COPY_BACKOFF: Final = Backoff(initial_s=2.0, maximum_s=300.0)


class KafkaAdapter(Adapter):
    """Receive from topics as a member of the consumers' `group`, and publish to topics.

    The committed offset of a partition follows the last message up to which all are settled. A delivery's epoch is
    the assignment of its partition: after a rebalance its settlement is dropped, and the new owner gets the message.

    Args:
        url_or_bootstrap: `host:9092,host:9092`, or `kafka://user:password@host:9092,host:9092`.
        semantics: when offsets are committed.
        transactional_id: for `exactly_once`; a process that starts with it fences the previous one. None: a new id,
            for this process alone. With `fenced`: what the ids of all relays of the outbox begin with.
        fenced: only publish, for a Relay, in transactions: a relay that was paused cannot publish late.
        ordering: which messages of a partition wait for each other.
        max_in_flight_per_partition: messages of one partition delivered at once. None: 1 with the ordering
            `partition`, else 1000. More than 1 with `partition` fills batches, and keeps the order while a Worker has
            one thread and no message fails or waits for its key; after a failed message, the next one is delivered
            when that is settled.
        max_pending_per_partition: received and unfinished messages at which a partition is paused; a fetch of up to 500
            may come on top.
        max_pending_bytes: bytes of such messages and of unsent outputs; each partition pauses at an equal share. The
            client library holds up to 16 MiB more, and 16 MiB for each broker (`queued.max.messages.kbytes`,
            `fetch.max.bytes`).
        commit_interval_s: seconds between commits.
        commit_every: settled messages after which a commit comes sooner.
        dead_letter_topic: for the dead letters of all topics; None: `<topic>.dlq` for each topic. It must exist.
        retry_topic: failed messages wait in the topic `<topic>.<group>.retry`, which must exist, and hold back no
            other message.
        acks: what `publish` waits for: `all`, `1` or `0`. Dead letters always wait for all.
        idempotent_producer: the broker drops what the client library sends twice, but no second `publish`. None: with
            `acks="all"`.
        publish_timeout_s: seconds within which the broker must confirm a message; a missing topic is refused after 5.
        fail_fast: `open` raises when no broker answers within 10 seconds, and `receive` as soon as the broker says that
            a topic is missing or access denied. False: the adapter waits for both, with a warning.
        security_protocol: librdkafka's `security.protocol`; default with a user name: `SASL_SSL`.
        sasl_mechanism: default with a user name: `PLAIN`.
        sasl_username: wins over the URL's.
        sasl_password: wins over the URL's.
        ssl_ca_location: a file with certificates.
        client_config: more of librdkafka's settings, for all its clients. Callbacks are called in the worker's thread;
            `callback_failed` logs what they raise. Statistics come at least every two seconds.
        consumer_config: more of them for the consumer. Automatic commits and offset stores are refused, and with
            `exactly_once` an `isolation.level` but `read_committed`, which is the default.
        producer_config: more of them for the producer, but `on_delivery` and `delivery.report.only.error`.

    Raises:
        ConfigurationError: settings that cannot work, or cannot work together.
    """

    token_type = Token

    def __init__(
        self,
        url_or_bootstrap: str,
        *,
        semantics: Semantics
        | Literal[
            "at_least_once", "at_most_once", "effectively_once", "exactly_once"
        ] = Semantics.AT_LEAST_ONCE,
        ordering: Ordering | Literal["partition", "key", "none"] = Ordering.PARTITION,
        transactional_id: str | None = None,
        fenced: bool = False,
        max_in_flight_per_partition: int | None = None,
        max_pending_per_partition: int = 2000,
        max_pending_bytes: int = 64 * 1024 * 1024,
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
        check_types(KafkaAdapter, locals())
        self._semantics = choice(Semantics, semantics, "semantics")
        self._limits = limits_of(
            ordering, max_in_flight_per_partition, max_pending_per_partition, max_pending_bytes
        )
        if min(commit_interval_s, publish_timeout_s) <= 0 or commit_every < 1:
            raise ConfigurationError("commit_interval_s, publish_timeout_s and commit_every must be above 0")
        check_semantics(
            self._semantics,
            self._limits.ordering,
            retry_topic=retry_topic,
            transactional_id=transactional_id,
            fenced=fenced,
            own={**(client_config or {}), **(consumer_config or {})},
        )
        self._transactional_id = transactional_id
        self._publish_timeout_s = publish_timeout_s
        self._producer_config = dict(producer_config or {})
        self._has_retry_topics = retry_topic
        self._commit_interval_s = commit_interval_s
        # Outputs that wait for their transaction are pending too: a full partition must not wait for more of them.
        self._keeps_outputs = self._semantics is Semantics.EXACTLY_ONCE
        most = max_pending_per_partition if self._keeps_outputs else commit_every
        self._commit_every = min(commit_every, most)
        self._dead_letter_topic = dead_letter_topic
        self._fail_fast = fail_fast
        self._consumer_config = dict(consumer_config or {})
        check_own(
            client_config=client_config, consumer_config=consumer_config, producer_config=producer_config
        )
        self._security = security_config(
            bootstrap_of(url_or_bootstrap),
            protocol=security_protocol,
            mechanism=sasl_mechanism,
            username=sasl_username,
            password=sasl_password,
            ca_location=ssl_ca_location,
            own=client_config,
        )
        self._sender = KafkaSender(
            self._security,
            acks=str(acks),
            idempotent=idempotent_producer,
            timeout_s=publish_timeout_s,
            own=self._producer_config,
        )
        if fenced and transactional_id is not None:
            self.fences = KafkaFences(
                self._security, transactional_id, timeout_s=publish_timeout_s, own=self._producer_config
            )
        self._copies: Copies
        self._stored = StoredOffsets([])
        self._group: KafkaGroup | None = None
        self._only_publishes = False
        self._woken = free_in_child(threading.Event())

    def open(self, consumers: Sequence[AnyConsumer]) -> None:
        if not consumers:
            self.close()
            self._sender.connect(fail_fast=self._fail_fast)
            self._only_publishes = True
            return
        if self.fences is not None:
            raise ConfigurationError("with fenced=True an adapter only publishes: give consumers another one")
        group_id = group_of(consumers)
        check_consumers(self._semantics, self._limits.ordering, consumers)
        subjects = subjects_of(consumers)
        retry_topics = {
            subject: f"{subject}.{group_id}.retry" for subject in subjects if self._has_retry_topics
        }
        topics = [*subjects, *retry_topics.values()]
        check_topics(topics)
        self.close()
        stored = self._stored = StoredOffsets(consumers)
        self._copies = Copies(
            self._sender, self.dead_letter_subject, retry_topics, stored, self._finish, group_id
        )
        commits = self._commits(group_id)
        topic_ids = TopicIds(make_client(AdminClient, {**self._security, **login_in(self._consumer_config)}))
        assignment = Assignment(
            topic_ids,
            self._limits,
            {topic: subject for subject, topic in retry_topics.items()},
            stored,
            commits,
            Resets(reset_policy(self._consumer_config, self._semantics, consumers), topic_ids, group_id),
            interval_s=self._commit_interval_s,
            every=self._commit_every,
        )
        config = consumer_config(self._security, group_id, self._consumer_config)
        self._group = KafkaGroup(config, topics, assignment, commits, fail_fast=self._fail_fast)

    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        group = self._group
        self._sender.upkeep()
        if group is None:
            if not self._only_publishes:
                raise ConfigurationError("open() comes before receive()")
            self._wait(timeout_s)
            return []
        deliveries = group.receive(limit, timeout_s, self.full_subjects, self._woken, self._sender.upkeep)
        if self._semantics is Semantics.AT_MOST_ONCE:
            deliveries = group.assignment.give_up(group.consumer, deliveries)
        return group.assignment.in_turn(deliveries)

    def _wait(self, timeout_s: float) -> None:
        """Do the upkeep of an adapter that only publishes, until that time has passed or it is woken."""
        until = time.monotonic() + timeout_s
        while True:
            self._sender.upkeep()
            self._sender.check()
            left_s = until - time.monotonic()
            if left_s <= 0 or self._woken.wait(min(left_s, _LOOK_S)):
                self._woken.clear()
                return

    def _acknowledge(self, delivery: Delivery, result: Result) -> bool:
        token: Token = delivery.token
        if not token.partition.take_back(token):
            return False
        position = delivery.message.position
        if delivery.only_for is not None and not self._stored.skip(token.partition.subject, position):
            # Another group's, and the store did not answer. It has moved past what a handler has run.
            token.partition.retry_at(token.record, time.monotonic() + _SKIP_S)
            return True
        if self._keeps_outputs and result.outcome is Outcome.PROCESSED:
            try:
                token.partition.outputs.keep(delivery.message, result.value)
            except OutputError as error:
                log.warning("output_refused", extra={**about_message(delivery.message), "error": str(error)})
                self._copies.dead_letter(delivery, Result(Outcome.REJECTED, error=error))
                return True
        self._finish(token.partition, token.record, result.outcome)
        return True

    def backlog(self) -> Mapping[str, Mapping[str, int]]:
        group = self._group
        return group.assignment.backlog(group.consumer) if group is not None and group.connected else {}

    def _delay(self, delivery: Delivery, after_s: float) -> bool:
        token: Token = delivery.token
        if not token.partition.take_back(token):
            return False
        if self._semantics is Semantics.AT_MOST_ONCE:
            log.warning("message_given_up", extra=about_message(delivery.message))
            self._finish(token.partition, token.record)
        elif not self._copies.retry(delivery, after_s):
            token.record.failures += 1
            token.partition.retry_at(token.record, time.monotonic() + after_s)
        return True

    def _dead_letter(self, delivery: Delivery, result: Result) -> bool:
        token: Token = delivery.token
        if not token.partition.take_back(token):
            return False
        self._copies.dead_letter(delivery, result)
        return True

    def _give_back(self, delivery: Delivery) -> bool:
        token: Token = delivery.token
        if not token.partition.take_back(token):
            return False
        token.partition.retry_at(token.record, 0.0)
        return True

    def publish(self, message: Message) -> None:
        """Send to the topic of its `subject`, its id as `x-idempotent-key`, its `key` as Kafka's record key.

        Without a `key` a message that came from Kafka keeps its record's; of any other the id becomes the record key.
        """
        self._sender.publish([message])

    def publish_many(self, messages: Sequence[Message]) -> None:
        self._sender.publish(messages)

    def put_back(self, letter: Message, group: str) -> None:
        """Send a dead letter as the record that it was: its value, key, headers and partition."""
        self._sender.put_back(letter, self.dead_letter_subject(letter.subject), group)

    def written_on(self, letter: Delivery) -> Mapping[str, Any]:
        return ours_of(letter.message.raw, letter.message.subject)

    def dead_letter_subject(self, subject: str) -> str:
        return self._dead_letter_topic or f"{subject}.dlq"

    def findings(self, subjects: Collection[str], *, horizon_s: float | None = None) -> Iterator[Finding]:
        check_topics(list(subjects))
        dead = {subject: self.dead_letter_subject(subject) for subject in subjects}
        yield from kafka_findings(
            self._security, dead, has_retry_topics=self._has_retry_topics, horizon_s=horizon_s
        )

    @property
    def connected(self) -> bool:
        if self._group is None:
            return self._only_publishes and self._sender.connected
        return self._group.connected

    @property
    def waits_for(self) -> str | None:
        if self._group is None:
            return None
        found = [self._group.waits_for, self._copies.untaken.text if self.connected else None]
        return "; ".join(filter(None, found)) or None

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        group, self._group, self._only_publishes = self._group, None, False
        if self.fences is not None:
            self.fences.close()
        # Confirmed dead letters are committed with the rest, and are not delivered again.
        self._sender.flush(_CLOSE_S)
        if group is not None:
            group.close()

    def _commits(self, group: str) -> Commits:
        if not self._keeps_outputs:
            return OffsetCommits()
        own_id, own = self._transactional_id, self._producer_config
        name = own_id or f"{group}-{uuid.uuid4()}"
        config = transactional_config(self._security, name, timeout_s=self._publish_timeout_s, own=own)
        on_refused = self._copies.dead_letter_of_input
        return Transactions(config, is_ours_alone=own_id is None, on_refused=on_refused)

    def _finish(self, partition: Partition, record: Record, outcome: Outcome | None = None) -> None:
        partition.finish(record, outcome)
        if self._group is not None:
            self._group.assignment.count_finished()


class Copies:
    """Sends copies, and finishes each original when the broker has confirmed its copy.

    Args:
        sender: sends the copies; its reports arrive in a later `receive`.
        dead_letter_topic: the topic for the dead letters of a subject.
        retry_topics: the retry topics by subject; empty: failed messages wait in this process.
        stored: the offsets that checkers keep.
        finish: finishes an original.
        group: the group whose dead letters they are.
    """

    def __init__(
        self,
        sender: KafkaSender,
        dead_letter_topic: Callable[[str], str],
        retry_topics: Mapping[str, str],
        stored: StoredOffsets,
        finish: Callable[[Partition, Record], None],
        group: str,
    ) -> None:
        self._sender = sender
        self._dead_letter_topic = dead_letter_topic
        self._retry_topics = retry_topics
        self._stored = stored
        self._finish = finish
        self._group = group
        self.untaken: Final = UntakenCopies[tuple[Partition, Record | Produced]](lambda each: each[0].is_open)

    def retry(self, delivery: Delivery, after_s: float) -> bool:
        """Send a copy that is due after `after_s` to the retry topic. False: there is no retry topic."""
        partition, record = delivery.token.partition, delivery.token.record
        topic = self._retry_topics.get(partition.subject)
        if topic is None:
            return False
        subject = partition.subject
        ours = ours_of(record.raw, subject)
        headers = delayed_headers(delivery.message, ours, subject, origin_text(record.raw))
        headers[DUE_HEADER] = round((time.time() + after_s) * 1000)
        self._copy(partition, record, delivery.message, topic, headers)
        return True

    def dead_letter(self, delivery: Delivery, result: Result) -> None:
        """Send a dead letter; then the offset that the store keeps moves past the original, too."""
        message, partition, record = delivery.message, delivery.token.partition, delivery.token.record
        topic = self._dead_letter_topic(partition.subject)
        ours, origin = ours_of(record.raw, partition.subject), origin_text(record.raw)
        headers = dead_letter_headers(message, ours, topic, origin, result, record.failures, self._group)
        if record.problem is not None:
            headers[CUT_HEADER] = "all"
        self._copy(
            partition,
            record,
            message,
            topic,
            headers,
            lambda: self._stored.skip(partition.subject, message.position),
        )

    def dead_letter_of_input(self, produced: Produced, refusal: Refusal) -> None:
        """Send a dead letter of a finished message whose outputs the broker refuses."""
        partition = refusal.partition
        result = Result(Outcome.REJECTED, error=OutputError(refusal.reason))
        topic, raw = self._dead_letter_topic(partition.subject), produced.message.raw
        ours = ours_of(raw, partition.subject)
        headers = dead_letter_headers(
            produced.message, ours, topic, origin_text(raw), result, group=self._group
        )

        def report(error: Unconfirmed | None) -> None:
            self._note(partition, produced, produced.message, topic, error)
            if error is None:
                partition.outputs.give_up(produced)
            else:
                # By then the broker may accept the outputs.
                produced.refused_until = time.monotonic() + _COPY_BACKOFF.initial_s

        self._sender.copy(topic, raw, headers, report)

    def _copy(
        self,
        partition: Partition,
        record: Record,
        message: Message,
        topic: str,
        headers: Mapping[str, Any],
        on_confirmed: Callable[[], bool] = lambda: True,
    ) -> None:
        """Send a copy. The original is finished when the broker has the copy and `on_confirmed` returns True."""

        def report(error: Unconfirmed | None) -> None:
            self._note(partition, record, message, topic, error)
            if not partition.is_open:
                return
            if error is None and on_confirmed():
                self._finish(partition, record)
            else:
                record.refusals += 1
                partition.retry_at(record, time.monotonic() + _COPY_BACKOFF.delay_s(record.refusals))

        self._sender.copy(topic, record.raw, headers, report)

    def _note(
        self,
        partition: Partition,
        source: Record | Produced,
        message: Message,
        topic: str,
        error: Unconfirmed | None,
    ) -> None:
        if error is None:
            self.untaken.taken((partition, source))
        else:
            self.untaken.refused((partition, source), topic, error.reason)
            log.error("copy_failed", extra={**about_message(message), "target": topic, "error": error.reason})
