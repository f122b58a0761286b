"""The settings of StompAdapter and the destinations of its subjects, checked."""

from __future__ import annotations

import math
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from idempotent.errors import ConfigurationError

_PORTS: Final = {"stomp": 61613, "stomp+ssl": 61612}
_EXAMPLE: Final = "stomp://user:password@host:61613"
_MOST_OF_PREFETCH: Final = 0.65
_MOST_OF_PREFETCH_DUPS_OK_TOPIC: Final = 0.5
# With its default `maxPageSize` a broker sends no more than this without an acknowledgement, whatever the prefetch.
# Tried on 5.17: a larger group always waits for its timeout.
_PAGE: Final = 200
_QUEUE: Final = "/queue/"
_TOPIC: Final = "/topic/"
_WILDCARDS: Final = frozenset({"*", ">"})


class AckMode(Enum):
    """The acknowledgement modes of ActiveMQ by their JMS names, as this adapter implements them over STOMP.

    STOMP's own `ack:auto` is not among them: with it the broker drops a message before it is sent.
    """

    AUTO = "auto"
    """AUTO_ACKNOWLEDGE: each message, when it is settled. With `optimize_acknowledge`, in groups."""
    CLIENT = "client"
    """CLIENT_ACKNOWLEDGE: a message and all before it, as soon as all of them are settled."""
    DUPS_OK = "dups_ok"
    """DUPS_OK_ACKNOWLEDGE: as CLIENT, but in groups: less work for the broker, more redeliveries after a crash."""
    TRANSACTED = "transacted"
    """SESSION_TRANSACTED: as CLIENT; acknowledgements and copies take effect together, at a confirmed COMMIT."""
    INDIVIDUAL = "individual"
    """INDIVIDUAL_ACKNOWLEDGE: each message, when it is settled."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker, and the credentials.

    Attributes:
        host: of the broker.
        port: of its STOMP connector.
        login: the user name; None: no login.
        passcode: the password.
        ssl: of an encrypted connection; None: unencrypted.
    """

    host: str
    port: int
    login: str | None
    passcode: str | None = field(repr=False)
    ssl: ssl.SSLContext | None

    def __str__(self) -> str:
        return f"{'stomp' if self.ssl is None else 'stomp+ssl'}://{self.host}:{self.port}"

    @classmethod
    def from_url(cls, url: str, ca_file: str | None) -> Address:
        """Read a `stomp://` or `stomp+ssl://` URL.

        Raises:
            ConfigurationError: the URL is invalid, or the certificates cannot be read.
        """
        # Errors must not repeat any part of the URL: it may hold a password.
        try:
            parts = urlsplit(url)
            if parts.scheme not in _PORTS or not parts.hostname or parts.path.strip("/") or parts.query:
                raise ConfigurationError(f"a STOMP URL looks like {_EXAMPLE} or stomp+ssl://...")
            port = parts.port or _PORTS[parts.scheme]
        except ValueError:
            raise ConfigurationError(
                f"a STOMP URL looks like {_EXAMPLE}, with a port up to 65535; in a password '/', '#', '?', '@' and '[' "
                "are written %2F, %23, %3F, %40 and %5B"
            ) from None
        login, passcode = (
            None if word is None else unquote(word) for word in (parts.username, parts.password)
        )
        if any(set(word or "") & set("\0\r\n") for word in (login, passcode)):
            raise ConfigurationError("a STOMP user name or password must not contain NUL or line breaks")
        if parts.scheme == "stomp" and ca_file is not None:
            raise ConfigurationError("ca_file needs a stomp+ssl:// URL")
        context = _context(ca_file) if parts.scheme == "stomp+ssl" else None
        return cls(parts.hostname, port, login or None, passcode, context)


@dataclass(frozen=True, slots=True)
class StompSettings:
    """The address of a broker and how to consume. `StompAdapter` explains each attribute.

    Raises:
        ConfigurationError: a number is out of its range, or two options do not go together.
    """

    address: Address
    ack: AckMode
    prefetch: int
    optimize_acknowledge: bool
    optimize_ack_timeout_s: float
    client_id: str | None
    durable_subscription: str | None
    heartbeat_s: float
    receipts: bool
    receipt_timeout_s: float
    connect_timeout_s: float
    accept_empty: bool

    def __post_init__(self) -> None:
        if self.prefetch < 1:
            raise ConfigurationError(
                f"prefetch must be at least 1, not {self.prefetch}: STOMP cannot fetch messages one by one"
            )
        for name in ("optimize_ack_timeout_s", "heartbeat_s", "receipt_timeout_s", "connect_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigurationError(f"{name} must be positive, not {getattr(self, name)}")
        if self.durable_subscription is not None and not self.client_id:
            raise ConfigurationError(
                "durable_subscription needs client_id: the broker stores the subscription under it"
            )
        if self.optimize_acknowledge and self.ack is not AckMode.AUTO:
            raise ConfigurationError(f'optimize_acknowledge needs ack="auto", not "{self.ack.value}"')

    @property
    def is_cumulative(self) -> bool:
        """Whether an acknowledgement covers all messages before it."""
        return self.optimize_acknowledge or self.ack not in (AckMode.AUTO, AckMode.INDIVIDUAL)

    @property
    def is_grouped(self) -> bool:
        """Whether acknowledgements wait for one another."""
        return self.optimize_acknowledge or self.ack is AckMode.DUPS_OK

    def group_of(self, destination: str) -> int:
        """How many settled messages make an acknowledgement due.

        65 % of the prefetch, as in ActiveMQ's own client, or of the most that the broker sends.
        """
        halves = self.ack is AckMode.DUPS_OK and is_topic(destination)
        part = _MOST_OF_PREFETCH_DUPS_OK_TOPIC if halves else _MOST_OF_PREFETCH
        return math.ceil(part * min(self.prefetch, _PAGE))

    def check_destinations(self, destinations: Sequence[str]) -> None:
        """Check that the subscriptions are possible.

        Raises:
            ConfigurationError: a durable subscription to anything but one topic.
        """
        if (
            destinations
            and self.durable_subscription is not None
            and not (len(destinations) == 1 and is_topic(destinations[0]))
        ):
            raise ConfigurationError(
                "durable_subscription is for the consumer of one topic, not for " + ", ".join(destinations)
            )


def _context(ca_file: str | None) -> ssl.SSLContext:
    if ca_file is not None and not Path(ca_file).is_file():
        raise ConfigurationError(f"cannot read the certificates in {ca_file}: no such file")
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigurationError(f"cannot read the certificates in {ca_file}: {error}") from error


def destination_of(subject: str) -> str:
    """`/queue/NAME`, unless the subject is a destination already.

    Raises:
        ConfigurationError: the subject does not name one queue or one topic.
    """
    destination = subject if subject.startswith((_QUEUE, _TOPIC)) else f"{_QUEUE}{subject}"
    name = _name_of(destination)
    if _WILDCARDS & set(name.split(".")) or "," in name:
        # A copy is sent to its destination, and a wildcard would also match the queue of the dead letters.
        raise ConfigurationError(
            f"{subject!r} names several destinations; write a consumer for each one, or forward their messages to one "
            "queue in activemq.xml (compositeQueue)"
        )
    if not name.strip() or "?" in name or name.startswith(("/", "queue://", "topic://")):
        raise ConfigurationError(
            f"{subject!r} is not the name of a queue or topic; write NAME, /queue/NAME or /topic/NAME, without options"
        )
    return destination


def is_topic(destination: str) -> bool:
    """Whether a destination is a topic, where a message without a subscriber is lost."""
    return destination.startswith(_TOPIC)


def dead_letters_of(destination: str) -> str:
    """The default destination for dead letters: always a queue, because a topic keeps no messages."""
    return f"{_QUEUE}{_name_of(destination)}.dead"


def _name_of(destination: str) -> str:
    return destination.removeprefix(_QUEUE).removeprefix(_TOPIC)
