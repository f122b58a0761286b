"""KafkaGroup: this process's membership in a consumer group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final

from idempotent.adapters.base import Delivery
from idempotent.adapters.kafka.assignment import Assignment
from idempotent.adapters.kafka.brokers import Brokers
from idempotent.adapters.kafka.client import (
    Callback,
    KafkaConsumer,
    KafkaError,
    KafkaException,
    Raw,
    error_of,
    is_fatal,
    make_client,
)
from idempotent.adapters.kafka.commits import Commits
from idempotent.consumer import AnyConsumer
from idempotent.errors import AdapterError, ConfigurationError
from idempotent.logs import EventLog

log = EventLog(__name__)
_MOST_FETCHED: Final = 500
# The client cannot be woken, so `wake` takes effect after at most this long.
_SLICE_S: Final = 0.05
_BLOCKED_WAIT_S: Final = 0.02
_UPKEEP_S: Final = 0.1
_LOOK_S: Final = 0.5
_CLOSE_S: Final = 10.0
_LEAVE_S: Final = 8.0
_LOOK_AGAIN_S: Final = 10.0
_SAY_AGAIN_S: Final = 60.0
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


class KafkaGroup:
    """A consumer that is polled in short slices, so that the owner thread is never blocked for long.

    Args:
        config: for the consumer.
        topics: to consume.
        assignment: receives the assigned partitions and their messages.
        commits: commits offsets.
        fail_fast: raise instead of waiting for a broker, a topic or a permission.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Sequence[str],
        assignment: Assignment,
        commits: Commits,
        *,
        fail_fast: bool,
    ) -> None:
        """Join.

        Raises:
            ConfigurationError: librdkafka refuses the settings.
            AdapterError: no broker answers, with `fail_fast`.
        """
        self.assignment: Final = assignment
        self._commits = commits
        self._where = config["bootstrap.servers"]
        self._fail_fast = fail_fast
        # With the newer protocol the client keeps its id, and `close` always leaves.
        self._has_member_id = config.get("group.protocol") != "consumer"
        self._brokers = Brokers(self._where)
        self._fatal: str | None = None
        self._fetched_at = 0.0
        self._waits: dict[str | None, str] = {}
        # The client library says each reason once, or once in a long while.
        self._look_at = self._say_at = 0.0
        callbacks: dict[str, Callback] = {
            "on_commit": commits.on_commit,
            "error_cb": self._on_error,
            "stats_cb": self._brokers.on_statistics,
        }
        self.consumer: Final = make_client(KafkaConsumer, config, callbacks)
        if fail_fast:
            try:
                self._brokers.meet(self.consumer)
            except KafkaException as error:
                self.consumer.close()
                why = self._brokers.complaint or error_of(error)
                raise AdapterError(f"cannot connect to Kafka at {self._where}: {why}") from error
        self._topics = list(topics)
        self._subscribe()

    def receive(
        self,
        limit: int,
        timeout_s: float,
        full: Container[str],
        woken: threading.Event,
        upkeep: Callable[[], None],
    ) -> list[Delivery]:
        """At most `limit` deliveries of subjects that are not `full`; none after `timeout_s` seconds, or when woken.

        `upkeep` is called while this waits.
        """
        until = time.monotonic() + timeout_s
        deliveries = self.take(limit, full)
        if len(deliveries) < limit or self.needs_upkeep:
            self.fetch(0.0, woken)
            deliveries += self.take(limit - len(deliveries), full)
        while not deliveries and (left_s := until - time.monotonic()) > 0 and not woken.is_set():
            self.fetch(min(left_s, _SLICE_S), woken)
            upkeep()
            deliveries = self.take(limit, full)
        woken.clear()
        # A rebalance in `fetch` may have ended the epoch of a delivery taken before it: the broker delivers that again.
        return [delivery for delivery in deliveries if delivery.token.partition.is_open]

    def fetch(self, wait_s: float, woken: threading.Event) -> None:
        """Receive messages, and wait at most `wait_s` seconds for the first. Rebalances happen in this call.

        Raises:
            AdapterError: the client cannot work any more, the broker refuses it, or it has lost records.
        """
        self._check()
        self._look_at_waits()
        self.assignment.upkeep(self.consumer)
        if wait_s > 0 and self.assignment.has_unfinished:
            # A settlement may release a message, and the client cannot be woken.
            woken.wait(min(wait_s, _BLOCKED_WAIT_S))
            wait_s = 0.0
        try:
            raws = self.consumer.consume(_MOST_FETCHED, 0)
            if not raws and wait_s > 0:
                first = self.consumer.poll(wait_s)  # `consume` would wait for the full number
                raws = [] if first is None else [first, *self.consumer.consume(_MOST_FETCHED, 0)]
        except KafkaException as error:
            raise AdapterError(f"Kafka at {self._where}: {error_of(error)}") from error
        self._fetched_at = time.monotonic()
        for raw in raws:
            problem = raw.error()
            if problem is None:
                self.assignment.add(raw)
            else:
                self._notice(raw, problem)
        self.assignment.begin_stored(self.consumer)
        self._check()

    @property
    def _fault(self) -> str | None:
        """Why the client cannot work any more."""
        return self._fatal or self._brokers.fault

    def _check(self) -> None:
        fault = self._fault or self._commits.fault
        if fault is not None:
            raise AdapterError(f"Kafka at {self._where}: {fault}")

    def take(self, limit: int, full: Container[str]) -> list[Delivery]:
        """At most `limit` deliveries of subjects that are not `full`, without waiting."""
        return self.assignment.take(limit, full, time.monotonic())

    @property
    def needs_upkeep(self) -> bool:
        """Whether the consumer must be polled, because a rebalance may be waiting."""
        return time.monotonic() - self._fetched_at > _UPKEEP_S

    @property
    def connected(self) -> bool:
        """Whether a broker answers, and the group has let this process in."""
        return not self._brokers.is_away and self.assignment.was_assigned

    @property
    def waits_for(self) -> str | None:
        """The topics that are missing or refused, with the broker's reasons; None: the group waits for none."""
        found = [f"topic {topic}: {why}" if topic else why for topic, why in self._waits.items()]
        found += [f"the id of topic {topic}: {why}" for topic, why in self.assignment.unknown_ids.items()]
        return "; ".join(found) if found and not self._brokers.is_away else None

    def close(self) -> None:
        """Commit finished messages, and leave the group."""
        if self._fault is None:  # else no commit can succeed
            self.assignment.commit_last(self.consumer, 0.0 if self._brokers.is_away else _CLOSE_S)
        self.assignment.end()
        # Without a broker the client library tries for the length of a session.
        leaving = threading.Thread(target=self._leave, name="idempotent-kafka-close", daemon=True)
        leaving.start()
        leaving.join(1.0 if self._brokers.is_away else _CLOSE_S)

    def _leave(self) -> None:
        """Leave the group, and close the client.

        In the middle of a rebalance the client library's `close` leaves nothing (librdkafka 2.16), and the group would
        wait for this member as long as for a dead one. `unsubscribe` waits for the end of the rebalance.
        """
        until = time.monotonic() + _LEAVE_S
        try:
            if self._fault is None:  # else there is no membership to end
                self.consumer.unsubscribe()
                while self._has_member_id and self.consumer.memberid() and time.monotonic() < until:
                    self.consumer.poll(_BLOCKED_WAIT_S)
        except KafkaException as error:
            log.warning("close_failed", extra={"broker": self._where, "error": error_of(error)})
        self.consumer.close()

    def _subscribe(self) -> None:
        self.consumer.subscribe(
            self._topics,
            on_assign=self.assignment.on_assign,
            on_revoke=self.assignment.on_revoke,
            on_lost=self.assignment.on_lost,
        )

    def _notice(self, raw: Raw, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - public, despite its name
            return  # asked for with `enable.partition.eof`
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            self.assignment.reset(raw, error_of(error))
        elif is_fatal(error):
            self._fatal = error_of(error)
        else:
            what = {"topic": raw.topic(), "error": error_of(error)}
            if self._fail_fast and error.code() in _REFUSED:
                raise ConfigurationError(f"Kafka at {self._where}, topic {what['topic']}: {what['error']}")
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART and (topic := raw.topic()) is not None:
                self.assignment.note_missing(topic)
            self._waits[raw.topic()] = error_of(error)
            self._say_waits([raw.topic()])

    def _say_waits(self, topics: Iterable[str | None]) -> None:
        now = time.monotonic()
        self._look_at, self._say_at = now + _LOOK_AGAIN_S, now + _SAY_AGAIN_S
        for topic in topics:
            log.warning("kafka_waits", extra={"topic": topic, "error": self._waits[topic]})

    def _look_at_waits(self) -> None:
        """See what the group still waits for, and say that again from time to time."""
        now = time.monotonic()
        if not self._waits or self._brokers.is_away or now < self._look_at:
            return
        self._look_at = now + _LOOK_AGAIN_S
        self._waits = {
            topic: why for topic, old in self._waits.items() if (why := self._why_waits(topic, old))
        }
        if now >= self._say_at:
            self._say_waits(self._waits)

    def _why_waits(self, topic: str | None, old: str) -> str | None:
        if topic is None:  # it is about the group
            return None if self.assignment.has_partitions else old
        try:
            error = self.consumer.list_topics(topic, timeout=_LOOK_S).topics[topic].error
        except KafkaException:
            return old
        return None if error is None else error_of(error)

    def _on_error(self, error: KafkaError) -> None:
        if is_fatal(error):
            self._fatal = error_of(error)
            return
        self._brokers.was_up |= self.assignment.was_assigned  # the statistics come later
        self._brokers.on_error(error)


def group_of(consumers: Sequence[AnyConsumer]) -> str:
    """The group of all consumers.

    Raises:
        ConfigurationError: they belong to several.
    """
    groups = sorted({consumer.group for consumer in consumers})
    if len(groups) != 1:
        raise ConfigurationError(
            f"a KafkaAdapter is a member of one consumer group, but the consumers belong to {', '.join(groups)}: "
            "run one worker for each group"
        )
    return groups[0]
