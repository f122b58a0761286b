"""What a KafkaAdapter tells librdkafka, and what it lets nobody change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final
from urllib.parse import unquote

from idempotent.errors import ConfigurationError


class Semantics(Enum):
    """When the offset of a message is committed."""

    AT_LEAST_ONCE = "at_least_once"
    """After the checker's verdict. What a crash repeats, the checker knows, unless it is an AttemptChecker."""
    AT_MOST_ONCE = "at_most_once"
    """Before the handler runs: what a crash or a failure interrupts never comes again."""
    EFFECTIVELY_ONCE = "effectively_once"
    """As AT_LEAST_ONCE, with none but checkers that know what is done."""
    EXACTLY_ONCE = "exactly_once"
    """In one transaction of Kafka with the messages that the handler returns."""


class Ordering(Enum):
    """Which messages of a partition wait for each other."""

    PARTITION = "partition"
    """All: a message is handed out when those before it are settled."""
    KEY = "key"
    """Those with the same Kafka key. Messages without a key wait for none."""
    NONE = "none"
    """None."""


_SCHEME: Final = "kafka://"
# `settle` and the watermark decide what is committed; anything automatic commits what is still running.
_AUTOMATIC: Final = ("enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store")
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
class Place:
    """The brokers to ask first, and who asks.

    Attributes:
        bootstrap: `host:port`, several with commas. Safe to log.
        username: from the URL.
        password: from the URL.
    """

    bootstrap: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)


def place_of(url_or_bootstrap: str) -> Place:
    """Read `host:9092,host:9092` or `kafka://user:password@host:9092,host:9092`.

    Raises:
        ConfigurationError: it names no host, or something after the hosts.
    """
    rest = url_or_bootstrap.removeprefix(_SCHEME)
    credentials, _, hosts = rest.rpartition("@")
    hosts = hosts.rstrip("/")
    # The text itself may hold a password.
    if not hosts.strip(",") or "/" in hosts or "?" in hosts:
        raise ConfigurationError(
            "KafkaAdapter takes brokers as host:9092,host:9092 or kafka://user:password@host:9092,host:9092"
        )
    user, _, password = credentials.partition(":")
    return Place(hosts, unquote(user) or None, unquote(password) or None)


def security_config(
    place: Place,
    *,
    protocol: str | None,
    mechanism: str | None,
    username: str | None,
    password: str | None,
    ca_location: str | None,
) -> dict[str, Any]:
    """What every client of these brokers needs."""
    user = username or place.username
    if user is not None:
        # Nobody's password goes over the network in the clear unasked.
        protocol, mechanism = protocol or "SASL_SSL", mechanism or "PLAIN"
    config: dict[str, Any] = {
        "bootstrap.servers": place.bootstrap,
        # Each failed attempt to connect is an error to librdkafka; the adapter says so more rarely.
        "log_level": 2,
        "security.protocol": protocol,
        "sasl.mechanisms": mechanism,
        "sasl.username": user,
        "sasl.password": password or place.password,
        "ssl.ca.location": ca_location,
    }
    return {name: value for name, value in config.items() if value is not None}


def consumer_config(security: Mapping[str, Any], group: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """For the consumer. `own` is the user's and wins, within limits that `check_own` knows."""
    config: dict[str, Any] = {
        **security,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # librdkafka's default, latest, silently skips what was sent before a new group's first start.
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "queued.max.messages.kbytes": 16_384,
        # A partition that was paused is fetched from again when the fetch under way has ended: half a second, else.
        "fetch.wait.max.ms": 100,
        # A topic that is made later is found in seconds instead of minutes.
        "topic.metadata.refresh.interval.ms": 10_000,
        "reconnect.backoff.max.ms": 5_000,
    }
    if own.get("group.protocol") != "consumer":
        # With the newer protocol the broker assigns.
        config["partition.assignment.strategy"] = "cooperative-sticky"
    return {**config, **own}


def producer_config(
    security: Mapping[str, Any], acks: str, *, idempotent: bool, timeout_s: float, own: Mapping[str, Any]
) -> dict[str, Any]:
    """For a producer that waits `timeout_s` for each confirmation."""
    return {
        **security,
        "acks": acks,
        "enable.idempotence": idempotent,
        "message.timeout.ms": round(timeout_s * 1000),
        # A copy is larger than its original; what is too large, the broker says.
        "message.max.bytes": 1_000_000_000,
        "linger.ms": 0,
        "reconnect.backoff.max.ms": 5_000,
        **own,
    }


def transactional_config(
    security: Mapping[str, Any], transactional_id: str, *, timeout_s: float, own: Mapping[str, Any]
) -> dict[str, Any]:
    """For the producer of transactions."""
    config = {
        # How long the transaction of a process that died keeps what comes after it from other readers.
        "transaction.timeout.ms": 10_000,
        # An output for a topic that does not exist holds up the others for as long.
        "topic.metadata.propagation.max.ms": 5_000,
        **own,
        "transactional.id": transactional_id,
    }
    timeout_s = min(timeout_s, int(config["transaction.timeout.ms"]) / 1000)
    return producer_config(security, "all", idempotent=True, timeout_s=timeout_s, own=config)


def check_own(name: str, own: Mapping[str, Any]) -> None:
    """Refuse settings that would break a promise, or that have a keyword.

    Raises:
        ConfigurationError: there is one.
    """
    for setting, value in own.items():
        if setting in _AUTOMATIC and str(value).lower() not in ("false", "0"):
            raise ConfigurationError(
                f"{name}: {setting} must stay off: it would commit messages that are still being processed"
            )
        if setting in _OURS:
            raise ConfigurationError(f"{name}: {setting} is given by {_OURS[setting]}")
