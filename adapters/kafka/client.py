"""The parts of confluent-kafka that are used, and clients whose errors do not show their configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from idempotent.errors import ConfigurationError, MissingExtraError

try:
    from confluent_kafka import (
        OFFSET_BEGINNING,
        OFFSET_END,
        OFFSET_INVALID,
        ConsumerGroupTopicPartitions,
        KafkaError,
        KafkaException,
        Producer,
        TopicCollection,
        TopicPartition,
        Uuid,
    )
    from confluent_kafka import Consumer as KafkaConsumer
    from confluent_kafka import Message as KafkaMessage
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in the stubs
except ImportError as error:
    raise MissingExtraError("confluent-kafka", "kafka") from error

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "AdminClient",
    "ConsumerGroupTopicPartitions",
    "KafkaConsumer",
    "KafkaError",
    "KafkaException",
    "KafkaMessage",
    "NewTopic",
    "Producer",
    "Raw",
    "TopicCollection",
    "TopicPartition",
    "Uuid",
    "error_of",
    "make_client",
]

Raw: TypeAlias = "KafkaMessage[Any, Any]"
C = TypeVar("C")
# librdkafka's own log; without a logger it goes to standard error.
_library_log = logging.getLogger("idempotent.adapters.kafka.adapter.librdkafka")


def make_client(kind: Callable[..., C], config: Mapping[str, Any]) -> C:
    """Create a client, which connects in the background.

    Raises:
        ConfigurationError: librdkafka does not know a setting, or refuses its value.
    """
    try:
        return kind({**config, "logger": _library_log})
    except (KafkaException, TypeError, ValueError) as error:
        raise ConfigurationError(f"Kafka client: {error_of(error)}") from None


def error_of(error: BaseException | KafkaError) -> str:
    """The message of an error, in one line."""
    inner = error.args[0] if isinstance(error, KafkaException) and error.args else error
    text = inner.str() if isinstance(inner, KafkaError) else str(inner)
    return " ".join(str(text).split())
