"""Where the messages wait: a broker of the benchmark's own, and how each is consumed."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from idempotent import Message, Registry
from idempotent.adapters import adapter_from_url
from idempotent.adapters.base import Adapter
from idempotent.adapters.kafka.client import Raw
from idempotent.adapters.kafka.records import message_of, origin_of
from idempotent.checkers import AbstractIdempotentChecker
from idempotent.message import Position
from tests.bench.brokers import bare
from tests.bench.brokers.course import Course
from tests.support.services import PrivateActiveMq, PrivateKafka, PrivateRabbitMq

BODY: Final = b"x" * 100
_PUBLISHED_TOGETHER: Final = 1000
# As the demo and most small topics have it.
_PARTITIONS: Final = 8

OnPublished = Callable[[int], object]


class Place(ABC):
    """One broker, and a subject full of messages for each consumption."""

    def __init__(self, url: str, count: int) -> None:
        self.url = url
        self.count = count
        self.group = "bench"

    @abstractmethod
    def fill(self, on_published: OnPublished) -> str:
        """A subject with all the messages, which nobody has consumed."""

    @abstractmethod
    def bare(self, subject: str) -> Course:
        """Consume all of it with the client alone."""

    @abstractmethod
    def adapter(self, batch_size: int) -> Adapter:
        """As the guide says for single messages, and for batches."""

    def adapter_for_tasks(self) -> Adapter:
        """As the guide says for many handlers at once."""
        return self.adapter(1)

    def _publish(self, subject: str, on_published: OnPublished) -> None:
        adapter = adapter_from_url(self.url)
        for start in range(0, self.count, _PUBLISHED_TOGETHER):
            numbers = range(start, min(start + _PUBLISHED_TOGETHER, self.count))
            adapter.publish_many([Message(subject, BODY, id=f"order-{number}") for number in numbers])
            on_published(len(numbers))
        adapter.close()


class RabbitMqPlace(Place):
    """A durable queue, persistent messages."""

    def fill(self, on_published: OnPublished) -> str:
        subject = _name()
        self._publish(subject, on_published)
        return subject

    def bare(self, subject: str) -> Course:
        return bare.rabbitmq(self.url, subject, self.count)

    def adapter(self, batch_size: int) -> Adapter:
        if batch_size == 1:
            return adapter_from_url(self.url)
        return adapter_from_url(self.url, ack="batched", prefetch=4 * batch_size, ack_batch=batch_size)

    def adapter_for_tasks(self) -> Adapter:
        # The default sends each acknowledgement by itself.
        return adapter_from_url(self.url, ack="batched")


class ActiveMqPlace(Place):
    """A queue, persistent messages."""

    def fill(self, on_published: OnPublished) -> str:
        subject = _name()
        self._publish(subject, on_published)
        return subject

    def bare(self, subject: str) -> Course:
        return bare.activemq(self.url, subject, self.count)

    def adapter(self, batch_size: int) -> Adapter:
        if batch_size == 1:
            return adapter_from_url(self.url, prefetch=bare.PREFETCH)
        return adapter_from_url(self.url, ack="dups_ok", prefetch=4 * batch_size)


class KafkaPlace(Place):
    """One topic for all: each consumption is a group of its own, which reads it from the beginning."""

    def __init__(self, url: str, count: int) -> None:
        super().__init__(f"kafka://{url}", count)
        self._bootstrap = url
        self._topic: str | None = None

    def fill(self, on_published: OnPublished) -> str:
        self.group = _name()
        if self._topic is None:
            self._topic = _name()
            self._make(self._topic)
            self._publish(self._topic, on_published)
        else:
            on_published(self.count)
        return self._topic

    def bare(self, subject: str) -> Course:
        return bare.kafka(self._bootstrap, subject, self.group, self.count)

    def by_hand(self, subject: str, checker: AbstractIdempotentChecker) -> Course:
        """Consume all of it with the client and a checker, in a loop by hand, without adapter and Worker."""
        consumer = Registry().consumer(subject, group=self.group, checker=checker)(lambda _: None)

        def process(raws: Sequence[Raw]) -> None:
            consumer.process_many([_message(raw, subject) for raw in raws])

        return bare.kafka(self._bootstrap, subject, self.group, self.count, process)

    def adapter(self, batch_size: int) -> Adapter:
        if batch_size == 1:
            return adapter_from_url(self.url)
        # One batch that runs and one that waits, as the worker takes them; with one thread they keep their order.
        return adapter_from_url(self.url, max_in_flight_per_partition=2 * batch_size)

    def adapter_for_tasks(self) -> Adapter:
        # The default hands out one message of a partition at a time.
        return adapter_from_url(self.url, ordering="key")

    def _make(self, topic: str) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        for answer in admin.create_topics([NewTopic(topic, _PARTITIONS)]).values():
            answer.result(30)


_KINDS: Final = {
    "RabbitMQ": (PrivateRabbitMq, RabbitMqPlace),
    "ActiveMQ": (PrivateActiveMq, ActiveMqPlace),
    "Kafka": (PrivateKafka, KafkaPlace),
}
BROKERS: Final = tuple(_KINDS)


def missing(broker: str) -> str | None:
    """What is not installed here to run this broker."""
    return _KINDS[broker][0].missing()


def open_place(broker: str, count: int) -> AbstractContextManager[Place]:
    """A broker of its own, for as long as the context."""
    server_kind, place_kind = _KINDS[broker]

    @contextmanager
    def opened() -> Iterator[Place]:
        server = server_kind()
        try:
            server.start()
            yield place_kind(server.url, count)
        finally:
            server.close()

    return opened()


def _message(raw: Raw, subject: str) -> Message:
    topic, number, offset = origin_of(raw)
    return message_of(raw, subject, Position(topic, number, offset, offset), False)


def _name() -> str:
    return f"bench-{secrets.token_hex(4)}"
