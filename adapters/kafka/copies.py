"""Copies: messages that are settled by a copy in a retry topic or in a dead-letter topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from idempotent.adapters.base import Delivery
from idempotent.adapters.copies import CUT_HEADER, dead_letter_headers, delayed_headers
from idempotent.adapters.kafka.offsets import StoredOffsets
from idempotent.adapters.kafka.ordered_queues import Record
from idempotent.adapters.kafka.outputs import Produced
from idempotent.adapters.kafka.partition import Partition
from idempotent.adapters.kafka.producer import Unconfirmed
from idempotent.adapters.kafka.records import DUE_HEADER, origin_text, ours_of
from idempotent.adapters.kafka.sender import KafkaSender
from idempotent.adapters.kafka.transactions.open_transaction import Refusal
from idempotent.errors import OutputError
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.observe.log_lines import about_message
from idempotent.outcomes import Outcome, Result
from idempotent.policy import Backoff

log = EventLog(__name__)
_BACKOFF: Final = Backoff(initial_s=2.0, maximum_s=300.0)


class Copies:
    """Sends copies, and finishes each original when the broker has confirmed its copy.

    Args:
        sender: sends the copies; its reports arrive in a later `receive`.
        dead_letter_topic: the topic for the dead letters of a subject.
        retry_topics: the retry topics by subject; empty: failed messages wait in this process.
        stored: the offsets that checkers keep.
        finish: finishes an original.
    """

    def __init__(
        self,
        sender: KafkaSender,
        dead_letter_topic: Callable[[str], str],
        retry_topics: Mapping[str, str],
        stored: StoredOffsets,
        finish: Callable[[Partition, Record], None],
    ) -> None:
        self._sender = sender
        self._dead_letter_topic = dead_letter_topic
        self._retry_topics = retry_topics
        self._stored = stored
        self._finish = finish

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
        headers = dead_letter_headers(message, ours, topic, origin, result, record.failures)
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
        headers = dead_letter_headers(produced.message, ours, topic, origin_text(raw), result)

        def report(error: Unconfirmed | None) -> None:
            if error is None:
                partition.outputs.give_up(produced)
            else:
                # By then the broker may accept the outputs.
                produced.refused_until = time.monotonic() + _BACKOFF.initial_s
                _log_failed(produced.message, topic, error)

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
            if error is not None:
                _log_failed(message, topic, error)
            if not partition.is_open:
                return
            if error is None and on_confirmed():
                self._finish(partition, record)
            else:
                record.refusals += 1
                partition.retry_at(record, time.monotonic() + _BACKOFF.delay_s(record.refusals))

        self._sender.copy(topic, record.raw, headers, report)


def _log_failed(original: Message, topic: str, error: Unconfirmed) -> None:
    log.error("copy_failed", extra={**about_message(original), "target": topic, "error": error.reason})
