"""The parts of confluent-kafka that are used; clients that hide their configuration; and what their errors mean."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

from idempotent.errors import AdapterError, ConfigurationError, MissingExtraError, described
from idempotent.logs import EventLog
from idempotent.observe.log_lines import LogThrottle

try:
    from confluent_kafka import (
        OFFSET_BEGINNING,
        OFFSET_END,
        OFFSET_INVALID,
        TIMESTAMP_NOT_AVAILABLE,
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
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]  # not in the stubs
except ImportError as error:
    raise MissingExtraError("confluent-kafka", "kafka") from error

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OF_THE_BATCH",
    "OF_THE_TOPIC",
    "TIMESTAMP_NOT_AVAILABLE",
    "AdminClient",
    "Callback",
    "ConfigResource",
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
    "is_fatal",
    "is_for_good",
    "make_client",
    "why_unreachable",
]

Raw: TypeAlias = "KafkaMessage[Any, Any]"
C = TypeVar("C")
Callback: TypeAlias = Callable[..., object]
log = EventLog(__name__)
_OAUTH: Final = "oauth_cb"
# Not `oauth_cb`: what it raises tells the client library that there is no token.
_CALLBACKS: Final = ("error_cb", "stats_cb", "throttle_cb", "on_commit")
_INTERVAL: Final = "statistics.interval.ms"
# The statistics alone tell that a broker is back.
_STATISTICS_MS: Final = 2_000
# Codes of errors that the client library itself raises: public, despite their names.
ALL_BROKERS_DOWN: Final = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
_AUTHENTICATION: Final = KafkaError._AUTHENTICATION  # noqa: SLF001
_SSL: Final = KafkaError._SSL  # noqa: SLF001
OF_THE_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - public, despite its name
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
"""Errors with which a record is refused for good, because of its topic."""
OF_THE_BATCH: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)
"""Errors with which the broker refuses a whole batch for good, because of one of its records."""
# A login waits for its token, whose provider may come back.
_UNAVAILABLE: Final = "Failed to acquire SASL OAUTHBEARER token"
# Untrusted certificates need a person; a starting broker causes other TLS errors.
_UNTRUSTED: Final = "certificate"
_HANDSHAKE: Final = "SSL_HANDSHAKE"
# librdkafka's own log; without a logger it goes to standard error.
_library_log = logging.getLogger("idempotent.adapters.kafka.adapter.librdkafka")


def make_client(
    kind: Callable[..., C], config: Mapping[str, Any], ours: Mapping[str, Callback] = MappingProxyType({})
) -> C:
    """Create a client, which connects in the background.

    Args:
        kind: its class.
        config: its settings; callbacks among them are the application's, and what they raise is logged.
        ours: the adapter's callbacks by setting, which are called before the application's.

    Raises:
        ConfigurationError: librdkafka does not know a setting, or refuses its value.
        AdapterError: `oauth_cb` gave no token for ten seconds.
    """
    own = {name: config[name] for name in _CALLBACKS if config.get(name) is not None}
    safe = {name: _safe(name, call) if callable(call) else call for name, call in own.items()}
    said: list[Exception] = []
    if callable(token := config.get(_OAUTH)):
        safe[_OAUTH] = _noting(token, said)
    callbacks = {**safe, **{name: _chain(call, safe.get(name)) for name, call in ours.items()}}
    try:
        if "stats_cb" in ours:
            callbacks[_INTERVAL] = min(int(config.get(_INTERVAL, 0)) or _STATISTICS_MS, _STATISTICS_MS)
        return kind({"logger": _library_log, **config, **callbacks})
    except (KafkaException, TypeError, ValueError) as error:
        if said:
            raise AdapterError(f"Kafka client: oauth_cb gives no token: {described(said[-1])}") from said[-1]
        raise ConfigurationError(f"Kafka client: {error_of(error)}") from None


def _noting(token: Callback, said: list[Exception]) -> Callback:
    """An `oauth_cb` that notes what it raises: the client library says only that it has no token."""

    def call(*arguments: Any) -> object:
        try:
            return token(*arguments)
        except Exception as error:
            said[:] = [error]
            raise

    return call


def _safe(name: str, callback: Callback) -> Callback:
    """A callback of the application that raises nothing: the client library would raise it from any of its calls."""
    sparse = LogThrottle()

    def call(*arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception:
            if (more := sparse.take()) is not None:
                log.exception("callback_failed", extra={"callback": name, "more": more})

    return call


def _chain(first: Callback, second: Callback | None) -> Callback:
    if second is None:
        return first

    def call(*arguments: Any) -> None:
        first(*arguments)
        second(*arguments)

    return call


def is_fatal(error: KafkaError) -> bool:
    """Whether the client will never work again.

    Only the error that `poll` raises says so itself; in a message, a report or another call it is a code.
    """
    return error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001 - public, despite its name


def error_of(error: BaseException | KafkaError) -> str:
    """The message of an error, in one line."""
    inner = error.args[0] if isinstance(error, KafkaException) and error.args else error
    text = inner.str() if isinstance(inner, KafkaError) else str(inner)
    return " ".join(str(text).split())


def is_for_good(error: KafkaError) -> bool:
    """Whether another attempt would fail in the same way: the login is refused, or the certificate untrusted."""
    return (error.code() == _AUTHENTICATION and _UNAVAILABLE not in error_of(error)) or _is_untrusted(error)


def why_unreachable(last: KafkaError, *, was_up: bool = False) -> str:
    """The client's last error of a broker that does not answer, and what to check if it never did."""
    text = error_of(last)
    if last.code() == ALL_BROKERS_DOWN:
        # The library also says this of brokers that went down, and of ports that close connections at once.
        return text if was_up else f"{text}; does the port want TLS or a login? See security_protocol"
    if last.code() == _AUTHENTICATION and is_for_good(last):
        return f"{text}; check sasl_username, sasl_password and sasl_mechanism"
    if _is_untrusted(last):
        return f"{text}; check ssl_ca_location and the host name"
    if _HANDSHAKE in text and "PLAINTEXT" not in text:
        # Sometimes the library's own text names PLAINTEXT already.
        return f"{text}; is it a PLAINTEXT port? See security_protocol"
    return text


def _is_untrusted(error: KafkaError) -> bool:
    text = error_of(error)
    # The library says it of the connection, too, with another code.
    return _UNTRUSTED in text and (error.code() == _SSL or _HANDSHAKE in text)
