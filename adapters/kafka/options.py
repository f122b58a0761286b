"""The settings of a KafkaAdapter: which go together, and what they are to librdkafka."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final
from urllib.parse import unquote

from idempotent.claims import Remembers
from idempotent.consumer import AnyConsumer
from idempotent.errors import ConfigurationError
from idempotent.validation import choice


class Semantics(Enum):
    """When the offset of a message is committed."""

    AT_LEAST_ONCE = "at_least_once"
    """After the checker's verdict. A crash repeats messages that the checker recognises, unless it is an
    AttemptChecker."""
    AT_MOST_ONCE = "at_most_once"
    """Before the handler runs: a message interrupted by a crash or a failure is not delivered again."""
    EFFECTIVELY_ONCE = "effectively_once"
    """As AT_LEAST_ONCE; each checker must remember what is done."""
    EXACTLY_ONCE = "exactly_once"
    """In one transaction of Kafka with the messages that the handler returns, which are sent to their `subject`s.
    Goes with an AttemptChecker."""


class Ordering(Enum):
    """Which messages of a partition wait for each other."""

    PARTITION = "partition"
    """All: a message is handed out when those before it are settled."""
    KEY = "key"
    """Those with the same Kafka key. Messages without a key do not wait."""
    NONE = "none"
    """No message waits for another."""


class Reset(Enum):
    """What to do when the broker no longer has records that the group has not processed."""

    EARLIEST = "earliest"
    """Continue with the first record that is left, and log an error."""
    LATEST = "latest"
    """Continue with the next new record, and log an error."""
    ERROR = "error"
    """Stop the worker."""


_SCHEME: Final = "kafka://"
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_LOGIN: Final = ("oauth", "sasl.", "ssl.", "enable.sasl.", "enable.ssl.")
_RESET: Final = "auto.offset.reset"
_LARGEST: Final = "message.max.bytes"
# Received and not yet taken over by the adapter, and again in an answer on its way, of each broker.
_FETCHED_BYTES: Final = 16 * 1024 * 1024
_ISOLATION: Final = "isolation.level"
# Settlements and the watermark decide what is committed; an automatic commit would cover messages still running.
_AUTOMATIC: Final = ("enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store")
# Each would leave messages without the report that `publish` and dead letters wait for.
_REPORTS: Final = ("on_delivery", "delivery.report.only.error")
_OURS: Final = {
    "bootstrap.servers": "the first argument",
    "metadata.broker.list": "the first argument",
    "group.id": "the consumers' group",
    "acks": "acks=",
    "request.required.acks": "acks=",
    "enable.idempotence": "idempotent_producer=",
    "transactional.id": "transactional_id=",
    "security.protocol": "security_protocol=",
    "sasl.mechanism": "sasl_mechanism=",
    "sasl.mechanisms": "sasl_mechanism=",
    "sasl.username": "sasl_username=",
    "sasl.password": "sasl_password=",
    "ssl.ca.location": "ssl_ca_location=",
}


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The bootstrap brokers and the credentials.

    Attributes:
        bootstrap: `host:port`, several separated by commas. Safe to log.
        username: from the URL.
        password: from the URL.
    """

    bootstrap: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)


def bootstrap_of(url_or_bootstrap: str) -> Bootstrap:
    """Read `host:9092,host:9092` or `kafka://user:password@host:9092,host:9092`.

    Raises:
        ConfigurationError: no host, or text after the hosts.
    """
    rest = url_or_bootstrap.removeprefix(_SCHEME)
    credentials, _, hosts = rest.rpartition("@")
    hosts = hosts.rstrip("/")
    # The error must not repeat the text: it may hold a password.
    if not hosts.strip(",") or "/" in hosts or "?" in hosts:
        raise ConfigurationError(
            "KafkaAdapter takes brokers as host:9092,host:9092 or kafka://user:password@host:9092,host:9092"
        )
    user, _, password = credentials.partition(":")
    return Bootstrap(hosts, unquote(user) or None, unquote(password) or None)


def security_config(
    bootstrap: Bootstrap,
    *,
    protocol: str | None,
    mechanism: str | None,
    username: str | None,
    password: str | None,
    ca_location: str | None,
    own: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The settings of every client of these brokers; `own` are the user's and win."""
    user = username or bootstrap.username
    if user is not None:
        # A password must not cross the network unencrypted unless the user asks for it.
        protocol, mechanism = protocol or "SASL_SSL", mechanism or "PLAIN"
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap.bootstrap,
        # librdkafka logs each failed attempt to connect as an error; the adapter logs fewer.
        "log_level": 2,
        "security.protocol": protocol,
        "sasl.mechanisms": mechanism,
        "sasl.username": user,
        "sasl.password": password or bootstrap.password,
        "ssl.ca.location": ca_location,
    }
    return {**{name: value for name, value in config.items() if value is not None}, **(own or {})}


def login_in(own: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the user's settings for one client with which another of the same brokers logs in too."""
    return {name: value for name, value in own.items() if name.startswith(_LOGIN)}


def consumer_config(security: Mapping[str, Any], group: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The consumer's settings. `own` are the user's, checked by `check_own`, and win."""
    config: dict[str, Any] = {
        **security,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        "queued.max.messages.kbytes": _FETCHED_BYTES // 1024,
        "fetch.max.bytes": max(_FETCHED_BYTES, int(security.get(_LARGEST, 0)), int(own.get(_LARGEST, 0))),
        # A resumed partition waits for the fetch in progress to end, by default half a second.
        "fetch.wait.max.ms": 100,
        # A topic created later is found in seconds instead of minutes.
        "topic.metadata.refresh.interval.ms": 10_000,
        "reconnect.backoff.max.ms": 5_000,
    }
    if own.get("group.protocol") != "consumer":
        # With the newer protocol the broker assigns.
        config["partition.assignment.strategy"] = "cooperative-sticky"
    # The adapter decides, because librdkafka does not tell a new group from lost records, and does not log the loss.
    return {**config, **own, _RESET: "error"}


def reset_policy(own: Mapping[str, Any], semantics: Semantics, consumers: Sequence[AnyConsumer]) -> Reset:
    """What to do when records are lost: the user's `auto.offset.reset`, else the default of the semantics.

    Raises:
        ConfigurationError: an unknown value.
    """
    if _RESET in own:
        return choice(Reset, str(own[_RESET]), _RESET)
    is_strict = semantics in (Semantics.EFFECTIVELY_ONCE, Semantics.EXACTLY_ONCE)
    return Reset.ERROR if is_strict or any(map(keeps_offsets, consumers)) else Reset.EARLIEST


def keeps_offsets(consumer: AnyConsumer) -> bool:
    """Whether the consumer's checker keeps offsets, which win over those committed to the broker."""
    return consumer.checker.remembers is Remembers.POSITIONS


def producer_config(
    security: Mapping[str, Any], acks: str, *, idempotent: bool, timeout_s: float, own: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of a producer that waits `timeout_s` seconds for each confirmation."""
    return {
        **security,
        "acks": acks,
        "enable.idempotence": idempotent,
        "message.timeout.ms": round(timeout_s * 1000),
        # A copy is larger than its original; the broker decides what is too large.
        "message.max.bytes": 1_000_000_000,
        # How long a message for a missing topic waits, and with it the end of `publish`.
        "topic.metadata.propagation.max.ms": round(min(timeout_s / 2, 5.0) * 1000),
        "linger.ms": 0,
        "reconnect.backoff.max.ms": 5_000,
        **own,
    }


def transactional_config(
    security: Mapping[str, Any], transactional_id: str, *, timeout_s: float, own: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of the transactional producer."""
    config = {
        # For this long, the open transaction of a dead process hides later records from other readers.
        "transaction.timeout.ms": 10_000,
        # After a longer transaction the producer is replaced; librdkafka's default would replace it often.
        "retry.backoff.ms": 250,
        **own,
        "transactional.id": transactional_id,
    }
    timeout_s = min(timeout_s, int(config["transaction.timeout.ms"]) / 1000)
    return producer_config(security, "all", idempotent=True, timeout_s=timeout_s, own=config)


def check_own(**configs: Mapping[str, Any] | None) -> None:
    """Refuse settings that would break a promise, or that have a keyword of their own.

    Raises:
        ConfigurationError: one of the user's `configs` contains such a setting.
    """
    settings = [(name, *item) for name, own in configs.items() for item in (own or {}).items()]
    for name, setting, value in settings:
        is_off = str(value).lower() in ("false", "0", "none")
        if setting in _AUTOMATIC and not is_off:
            raise ConfigurationError(
                f"{name}: {setting} must stay off: it would commit messages that are still being processed"
            )
        if setting in _REPORTS and not is_off:
            raise ConfigurationError(
                f"{name}: {setting} would take the broker's confirmations from the adapter; `publish` returns when a "
                "message is confirmed"
            )
        if setting in _OURS:
            raise ConfigurationError(f"{name}: {setting} is given by {_OURS[setting]}")


def check_topics(topics: Sequence[str]) -> None:
    """Refuse names that no topic can have; the client would take one that begins with `^` for a pattern.

    Raises:
        ConfigurationError: Kafka allows no such name.
    """
    for topic in topics:
        if not _NAME.fullmatch(topic) or topic in (".", ".."):
            raise ConfigurationError(
                f"{topic!r} cannot be a topic: names are made of letters, digits, '.', '_' and '-'. There are no "
                "patterns: declare a consumer for each topic"
            )


def check_semantics(
    semantics: Semantics,
    ordering: Ordering,
    *,
    retry_topic: bool,
    transactional_id: str | None,
    fenced: bool,
    own: Mapping[str, Any],
) -> None:
    """Refuse settings with which the semantics cannot keep their promise; `own` are the user's for the consumer.

    Raises:
        ConfigurationError: two settings do not go together.
    """
    is_transactional = semantics is Semantics.EXACTLY_ONCE
    if semantics is Semantics.AT_MOST_ONCE and ordering is Ordering.KEY:
        # A commit covers all earlier messages, also those that wait for their key.
        raise ConfigurationError("semantics='at_most_once' goes with the orderings 'partition' and 'none'")
    if retry_topic and (semantics is Semantics.AT_MOST_ONCE or ordering is not Ordering.NONE):
        raise ConfigurationError("retry_topic=True gives up the order: it goes with ordering='none' alone")
    if retry_topic and is_transactional:
        raise ConfigurationError(
            "retry_topic=True cannot go with semantics='exactly_once': a copy may come twice, and so would its outputs"
        )
    if fenced and is_transactional:
        raise ConfigurationError("fenced=True is for relays, and cannot go with semantics='exactly_once'")
    if fenced and transactional_id is None:
        raise ConfigurationError("fenced=True needs transactional_id=, a name for all relays of one outbox")
    if transactional_id is not None and not (is_transactional or fenced):
        raise ConfigurationError("transactional_id= goes with semantics='exactly_once' or fenced=True alone")
    if transactional_id == "":
        raise ConfigurationError("transactional_id must not be empty; None generates one")
    if is_transactional and own.get(_ISOLATION, "read_committed") != "read_committed":
        raise ConfigurationError(
            f"{_ISOLATION} must stay 'read_committed' with semantics='exactly_once': else messages of an "
            "aborted transaction may be read, and an offset that another process is about to commit may be missed"
        )


def check_consumers(semantics: Semantics, ordering: Ordering, consumers: Sequence[AnyConsumer]) -> None:
    """Refuse consumers and checkers with which the semantics cannot keep their promise.

    Raises:
        ConfigurationError: a consumer cannot keep this promise.
    """
    for consumer in consumers:
        remembers, kind = consumer.checker.remembers, type(consumer.checker).__name__
        if semantics is Semantics.EXACTLY_ONCE and remembers is not Remembers.NOTHING:
            raise ConfigurationError(
                f"{consumer.name}: with semantics='exactly_once' a transaction of Kafka decides what is done, and a "
                f"{kind} would remember messages whose transaction failed: their outputs would be lost. Use "
                "idempotent.checkers.AttemptChecker(), which remembers no message"
            )
        if semantics is Semantics.EXACTLY_ONCE and consumer.handler.batch:
            raise ConfigurationError(
                f"{consumer.name}: batch=True cannot go with semantics='exactly_once': the outputs could not "
                "be matched to their messages. A transaction covers many messages anyway; see commit_every"
            )
        if semantics is Semantics.EFFECTIVELY_ONCE and remembers is Remembers.NOTHING:
            raise ConfigurationError(
                f"{consumer.name}: semantics='effectively_once' needs a checker that remembers what is done, and a "
                f"{kind} does not"
            )
        if keeps_offsets(consumer) and (
            ordering is not Ordering.PARTITION or semantics is Semantics.AT_MOST_ONCE
        ):
            raise ConfigurationError(
                "an OffsetChecker relies on the order of a partition: it goes with ordering='partition' and with all "
                "semantics except 'at_most_once'"
            )
