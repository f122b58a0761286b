"""For a loop of your own over confluent-kafka: the message of a record, and what to do after its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from idempotent.adapters.copies import reason_of
from idempotent.adapters.kafka.client import KafkaError, KafkaException, Raw, TopicPartition, Uuid
from idempotent.adapters.kafka.records import epoch_of, message_of, origin_of
from idempotent.adapters.kafka.topics import text_of
from idempotent.errors import AdapterError
from idempotent.message import Message, Position
from idempotent.outcomes import ACK, Action, Result

_PAUSE_S: Final = 1.0
# Well below `max.poll.interval.ms`, after which the group takes the partition away.
_LONGEST_PAUSE_S: Final = 30.0
_LOST: Final = frozenset({KafkaError._STATE, KafkaError._UNKNOWN_PARTITION})  # noqa: SLF001 - public, despite its name


def from_confluent(record: Raw, topic_id: Uuid | str) -> Message:
    """The message of a record, as the adapter makes it: the same id, so the same key.

    Args:
        record: of `Consumer.poll`, without an error.
        topic_id: the topic's id, part of the id of a record without one of its own: a topic that is created again has
            the same offsets. `admin.describe_topics(TopicCollection([topic]))[topic].result().topic_id`, from an
            AdminClient of confluent-kafka.
    """
    topic, partition, offset = origin_of(record)
    position = Position(text_of(topic, topic_id), partition, offset, offset, epoch_of(record))
    return message_of(record, topic, position, redelivered=False)


def settle(
    result: Result,
    consumer: Any,
    record: Raw,
    *,
    dead_letter: Callable[[Raw, str], object] | None = None,
) -> None:
    """Commit the offset of a record that is done; let one that is not be read again.

    To be read again, its partition goes back to it, and this waits for `result.retry_after_s`, at most 30 s: a later
    record of the partition must not be committed before it. So the loop reads by `poll`, record by record, from a
    consumer with `enable.auto.commit=False`.

    Args:
        result: of `consumer.process`.
        consumer: a `confluent_kafka.Consumer`.
        record: that it read last.
        dead_letter: called with a record that is dead or rejected, and the reason, for Kafka has no dead letters: keep
            it somewhere, and return when that is certain. Then its offset is committed.

    Raises:
        AdapterError: the record is dead or rejected, and there is no `dead_letter`; nothing is committed.
        KafkaException: confluent-kafka refuses.
    """
    action = result.action
    if action is Action.DEAD_LETTER:
        reason = reason_of(result)
        if dead_letter is None:
            topic, partition, offset = origin_of(record)
            raise AdapterError(
                f"{topic}/{partition}/{offset} is {result.outcome.value} ({reason}), and Kafka has no dead letters: "
                "give settle a dead_letter= that keeps it. Its offset is not committed"
            )
        dead_letter(record, reason)
    if action is ACK or action is Action.DEAD_LETTER:
        consumer.commit(record)
        return
    try:
        consumer.seek(TopicPartition(*origin_of(record)))
    except KafkaException as error:
        if error.args[0].code() in _LOST:
            return  # another member reads it again
        raise
    time.sleep(min(result.retry_after_s or _PAUSE_S, _LONGEST_PAUSE_S))
