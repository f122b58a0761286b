"""Brokers as the tests that hold for each of them see one: messages in, dead letters and what is left out."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator

import pytest

from idempotent import Message
from idempotent.adapters.base import Adapter
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from tests.adapters.activemq.stomp_client import client, in_queue
from tests.adapters.conformance_child import GROUP, adapter_at
from tests.adapters.kafka.broker import Broker
from tests.adapters.rabbitmq.rabbit import Rabbit

PARTITIONS = 2


class Place(ABC):
    """One broker."""

    def __init__(self, url: str) -> None:
        self.url = url

    def adapter(self) -> Adapter:
        """That acknowledges each message by itself, where the broker knows such a thing."""
        return adapter_at(self.url, batched=False)

    @abstractmethod
    def subject(self) -> str:
        """One that nobody else has, with a place for its dead letters."""

    @abstractmethod
    def send(self, *messages: Message) -> None: ...

    @abstractmethod
    def dead_letters(self, subject: str) -> list[Message]: ...

    @abstractmethod
    def left(self, subject: str) -> int:
        """How many messages would come again, while no worker is there."""

    def close(self) -> None:  # noqa: B027 - most leave nothing behind
        """Clean up."""


class RabbitPlace(Place):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._rabbit = Rabbit(url)

    def subject(self) -> str:
        return str(self._rabbit.declare(self._rabbit.name()))

    def send(self, *messages: Message) -> None:
        self._rabbit.send(*messages)

    def dead_letters(self, subject: str) -> list[Message]:
        return list(self._rabbit.look(f"{subject}.dead"))

    def left(self, subject: str) -> int:
        return int(self._rabbit.depth(subject))

    def close(self) -> None:
        self._rabbit.clean_up()


class StompPlace(Place):
    def subject(self) -> str:
        return f"orders-{secrets.token_hex(6)}"

    def send(self, *messages: Message) -> None:
        with client(self.url) as sender:
            for message in messages:
                key = {"x-idempotent-key": str(message.id)} if message.id else {}
                frame = {"destination": f"/queue/{message.subject}", "persistent": "true"}
                length = {"content-length": str(len(message.body))}
                sender.send("SEND", {**message.headers, **frame, **length, **key}, message.body)
            sender.publish("/queue/done-with-sending")  # its receipt is for all before it, too

    def dead_letters(self, subject: str) -> list[Message]:
        return in_queue(self.url, f"/queue/{subject}.dead")

    def left(self, subject: str) -> int:
        return len(in_queue(self.url, f"/queue/{subject}"))


class KafkaPlace(Place):
    def __init__(self, bootstrap: str) -> None:
        super().__init__(f"kafka://{bootstrap}")
        self._broker = Broker(bootstrap)
        self._sent: Counter[str] = Counter()

    def subject(self) -> str:
        topic = f"orders-{secrets.token_hex(6)}"
        self._broker.make(topic, PARTITIONS)
        self._broker.make(f"{topic}.dlq")
        return topic

    def send(self, *messages: Message) -> None:
        for message in messages:
            key = {"x-idempotent-key": message.id} if message.id else {}
            self._broker.send(message.subject, message.body, **{**message.headers, **key})
            self._sent[message.subject] += 1
        self._broker.flush()

    def dead_letters(self, subject: str) -> list[Message]:
        return list(self._broker.read(f"{subject}.dlq"))

    def left(self, subject: str) -> int:
        committed = [self._broker.committed(GROUP, subject, number) or 0 for number in range(PARTITIONS)]
        return self._sent[subject] - sum(committed)


class MemoryPlace(Place):
    """The broker in this process. Its other clients are programs like this one."""

    def __init__(self) -> None:
        super().__init__("memory://")
        self.broker = MemoryBroker()

    def adapter(self) -> MemoryAdapter:
        return MemoryAdapter(self.broker)

    def subject(self) -> str:
        return f"orders-{secrets.token_hex(6)}"

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.broker.publish(message)

    def dead_letters(self, subject: str) -> list[Message]:
        return [letter.message for letter in self.broker.dead_letters(subject)]

    def left(self, subject: str) -> int:
        return self.broker.backlog(subject)


class CopyingKafka(KafkaPlace):
    """Failed messages wait in a retry topic, as copies."""

    def adapter(self) -> Adapter:
        return KafkaAdapter(
            self.url.removeprefix("kafka://"), ordering="none", commit_interval_s=0.1, retry_topic=True
        )

    def subject(self) -> str:
        topic = super().subject()
        self._broker.make(f"{topic}.{GROUP}.retry")
        return topic


_KINDS = {
    "rabbitmq": (RabbitPlace, "rabbitmq_url"),
    "activemq": (StompPlace, "stomp_url"),
    "kafka": (KafkaPlace, "kafka_bootstrap"),
}
BROKERS = sorted(_KINDS)


def open_place(name: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A broker by its name."""
    kind, fixture = _KINDS[name]
    place = kind(request.getfixturevalue(fixture))
    yield place
    place.close()


def open_copying(name: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A broker, or "memory", where a failed message comes back as a copy, if copies there are."""
    if name == "memory":
        yield MemoryPlace()
    elif name == "kafka":
        yield CopyingKafka(request.getfixturevalue("kafka_bootstrap"))
    else:
        yield from open_place(name, request)
