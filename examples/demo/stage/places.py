"""Place: a queue or topic on a broker for one run, created empty and removed at the end."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from idempotent.adapters import adapter_from_url
from idempotent.adapters.base import Adapter
from idempotent.errors import AdapterError, ConfigurationError
from idempotent.policy import Backoff

_BACKOFF: Final = Backoff(initial_s=0.2, maximum_s=2.0)
# A dead connection is noticed after a few of these.
_HEARTBEAT_S: Final = 4
_PARTITIONS: Final = 8
# A group notices after this time that a member was killed; the least that brokers allow by default.
_SESSION_S: Final = 6.0
_ANSWER_S: Final = 30.0


class Place(ABC):
    """Where the messages of a run go. The options in the query of the URL win over the defaults here."""

    broker: str
    """The broker's name, for people."""
    quiet_s: float = 2.0
    """After this time without a delivery none is left, not even one that a killed consumer had."""
    has_offsets: bool = False
    """Messages have offsets in partitions: the broker keeps their order, and `rewind` can reset a group."""
    has_bytes: bool = True
    """The value of a header may be bytes that are no text."""

    def __init__(self, url: str, subject: str, batch_size: int) -> None:
        self.url: Final = url
        self.subject: Final = subject
        self.batch_size: Final = batch_size

    @property
    def shown_url(self) -> str:
        """The URL without user, password and options."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()

    @property
    def given(self) -> dict[str, str]:
        """The options in the URL."""
        return dict(parse_qsl(urlsplit(self.url).query))

    def adapter(self) -> Adapter:
        """A new adapter."""
        return self._adapter_at(self.url)

    def reader(self) -> Adapter:
        """A new adapter that only reads, whatever semantics the URL asks for."""
        parts = urlsplit(self.url)
        rest = [(name, value) for name, value in parse_qsl(parts.query) if name != "semantics"]
        return self._adapter_at(parts._replace(query=urlencode(rest)).geturl())

    def _adapter_at(self, url: str) -> Adapter:
        options = self._options()
        return adapter_from_url(url, **{name: options[name] for name in options.keys() - self.given})

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """The adapter's options that suit a short run."""

    def make(self) -> None:  # noqa: B027 - by default the adapter or the broker does it
        """Create the queue or topic. Raises AdapterError: the broker refused."""

    def remove(self) -> None:  # noqa: B027 - by default nothing stays
        """Remove it and its dead letters. Raises AdapterError: the broker refused."""

    def rewind(self, group: str) -> None:
        """Let the broker forget what this group acknowledged. No member of it may be running.

        Raises:
            AdapterError: the broker keeps no offsets, or refused.
        """
        raise AdapterError(f"{self.broker} keeps no offsets, so it cannot deliver to {group} again")


class RabbitMqPlace(Place):
    """Queues, made by the adapter."""

    broker = "RabbitMQ"
    queues: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """Queues that `make` makes before the adapter does, by name, with their arguments."""

    def _options(self) -> dict[str, Any]:
        return {
            "ack": "batched",
            "prefetch": 2 * self.batch_size,
            "backoff": _BACKOFF,
            "heartbeat_s": _HEARTBEAT_S,
        }

    def make(self) -> None:
        with self._channel("created") as channel:
            for queue, arguments in self.queues.items():
                channel.queue_declare(queue, durable=True, arguments=dict(arguments))

    def remove(self) -> None:
        from idempotent.adapters.rabbitmq.topology import DEAD_SUFFIX, delayed_queues

        with self._channel("removed") as channel:
            for queue in (
                *(self.subject, self.subject + DEAD_SUFFIX),
                *delayed_queues(self.subject),
                *self.queues,
            ):
                channel.queue_delete(queue)

    @contextmanager
    def _channel(self, done: str) -> Iterator[Any]:
        from idempotent.adapters.rabbitmq.client import LOST
        from idempotent.adapters.rabbitmq.server import server_at

        given = self.given
        server = server_at(
            urlsplit(self.url)._replace(query="").geturl(),
            ca_file=given.get("ca_file"),
            cert_file=given.get("cert_file"),
            key_file=given.get("key_file"),
        )
        try:
            connection = server.connect(0)
            yield connection.channel()
            connection.close()
        except LOST as error:
            raise AdapterError(f"the queue {self.subject} could not be {done}: {error!r}") from error


class ActiveMqPlace(Place):
    """A queue that the first message creates. STOMP cannot remove it; it is empty at the end."""

    broker = "ActiveMQ"
    has_bytes = False

    def _options(self) -> dict[str, Any]:
        return {"prefetch": 2 * self.batch_size, "backoff": _BACKOFF, "heartbeat_s": float(_HEARTBEAT_S)}


class KafkaPlace(Place):
    """A topic, and one for its dead letters."""

    broker = "Kafka"
    quiet_s = _SESSION_S + 2
    has_offsets = True

    def _options(self) -> dict[str, Any]:
        return {
            # A group of one partition is one transaction, which keeps the order.
            "max_in_flight_per_partition": self.batch_size,
            "consumer_config": {"session.timeout.ms": round(_SESSION_S * 1000)},
        }

    def make(self) -> None:
        from idempotent.adapters.kafka.client import NewTopic

        topics = [NewTopic(self.subject, _PARTITIONS), NewTopic(f"{self.subject}.dlq", 1)]
        self._ask(lambda admin: admin.create_topics(topics))

    def remove(self) -> None:
        topics = [self.subject, f"{self.subject}.dlq"]
        self._ask(lambda admin: admin.delete_topics(topics))

    def rewind(self, group: str) -> None:
        from idempotent.adapters.kafka.client import ConsumerGroupTopicPartitions, TopicPartition

        starts = [TopicPartition(self.subject, number, 0) for number in range(_PARTITIONS)]
        offsets = ConsumerGroupTopicPartitions(group, starts)
        until = time.monotonic() + _ANSWER_S
        while True:
            try:
                self._ask(lambda admin: admin.alter_consumer_group_offsets([offsets]))
            except AdapterError:
                # Killed members stay members until their session ends.
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)
            else:
                return

    @property
    def client_config(self) -> dict[str, Any]:
        """The broker's address and the security settings, for a client of the library."""
        from idempotent.adapters.kafka.options import bootstrap_of, security_config

        given = self.given
        return security_config(
            bootstrap_of(urlsplit(self.url)._replace(query="").geturl()),
            protocol=given.get("security_protocol"),
            mechanism=given.get("sasl_mechanism"),
            username=given.get("sasl_username"),
            password=given.get("sasl_password"),
            ca_location=given.get("ssl_ca_location"),
        )

    def _ask(self, question: Callable[[Any], Mapping[Any, Any]]) -> None:
        from idempotent.adapters.kafka.client import AdminClient, KafkaException, error_of, make_client

        admin = make_client(AdminClient, self.client_config)
        try:
            for answer in question(admin).values():
                answer.result(_ANSWER_S)
        except (KafkaException, TimeoutError) as error:
            raise AdapterError(f"Kafka, {self.subject}: {error_of(error)}") from error


_PLACES: Final[Mapping[str, type[Place]]] = {
    "amqp": RabbitMqPlace,
    "amqps": RabbitMqPlace,
    "kafka": KafkaPlace,
    "stomp": ActiveMqPlace,
    "stomp+ssl": ActiveMqPlace,
}


def place_at(url: str, subject: str, batch_size: int) -> Place:
    """The place on the broker that a URL names. Raises ConfigurationError: the URL names no known broker."""
    scheme = urlsplit(url).scheme
    if scheme not in _PLACES:
        known = ", ".join(f"{scheme}://" for scheme in sorted(_PLACES))
        raise ConfigurationError(f"no broker for a URL with the scheme {scheme!r}; known: {known}")
    return _PLACES[scheme](url, subject, batch_size)
