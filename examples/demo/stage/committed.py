"""Reads what transactions committed to a topic of Kafka, up to its real end."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from idempotent.errors import AdapterError

_ANSWER_S: Final = 30.0
# The broker aborts the transaction of a killed process after up to 20 s, and until then shows nothing behind it.
_READ_S: Final = 90.0
_POLL_S: Final = 0.5
# librdkafka's _PARTITION_EOF
_AT_END: Final = -191


def committed(client_config: Mapping[str, Any], topic: str) -> Iterator[bytes]:
    """The values of all records that are committed, from the first to the present end of each partition.

    Silence is no end: a reader of committed records sees nothing behind an open transaction, so this waits for its end.

    Raises:
        AdapterError: the broker does not answer, or a transaction stays open.
    """
    from idempotent.adapters.kafka.client import OFFSET_BEGINNING, KafkaConsumer, TopicPartition, make_client

    ends = _ends(client_config, topic)
    reader = make_client(KafkaConsumer, _config(client_config, "read_committed"))
    try:
        reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in ends])
        until = time.monotonic() + _READ_S
        while ends:
            if time.monotonic() > until:
                raise AdapterError(f"{topic}: a transaction stays open, or the broker does not answer")
            raw = reader.poll(_POLL_S)
            if raw is None:
                continue
            error = raw.error()
            if error is None:
                yield raw.value() or b""
            elif error.code() == _AT_END and (raw.offset() or 0) >= ends.get(raw.partition() or 0, 0):
                ends.pop(raw.partition() or 0, None)
    finally:
        reader.close()


def _ends(client_config: Mapping[str, Any], topic: str) -> dict[int, int]:
    """The end of each partition, open transactions included. A topic that was made just now has no leader yet."""
    from idempotent.adapters.kafka.client import (
        KafkaConsumer,
        KafkaException,
        TopicPartition,
        error_of,
        make_client,
    )

    reader = make_client(KafkaConsumer, _config(client_config, "read_uncommitted"))
    until = time.monotonic() + _ANSWER_S
    try:
        while True:
            try:
                return {
                    number: reader.get_watermark_offsets(TopicPartition(topic, number), timeout=_ANSWER_S)[1]
                    for number in reader.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions
                }
            except KafkaException as error:
                if time.monotonic() > until:
                    raise AdapterError(f"Kafka, {topic}: {error_of(error)}") from error
                time.sleep(_POLL_S)
    finally:
        reader.close()


def _config(client_config: Mapping[str, Any], isolation: str) -> dict[str, Any]:
    return {
        **client_config,
        "group.id": f"committed-{secrets.token_hex(4)}",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
