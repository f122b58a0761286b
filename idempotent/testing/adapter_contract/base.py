"""AdapterContractBase: what the tests of an adapter ask of their subclass, and what they share."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from idempotent.adapters.base import Adapter, Delivery
from idempotent.checkers import MemoryChecker
from idempotent.errors import PublishError
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.registry import Registry

DEADLINE_S: Final = 150.0
ACK: Final = Result(Outcome.PROCESSED)
BODY: Final = bytes(range(256))


class AdapterContractBase(ABC):
    """What a subclass provides.

    Each test has a subject (queue, destination, topic) of its own; `prepare` creates it.
    """

    keeps_back: ClassVar[bool] = True
    """Whether `receive` keeps back the messages of `full_subjects`."""

    tells_redelivery: ClassVar[bool] = True
    """Whether the broker marks redeliveries, and nothing else, as redelivered."""

    keeps_key: ClassVar[bool] = False
    """Whether `Message.key` travels with a message, as the key of a Kafka record does."""

    keeps_tombstones: ClassVar[bool] = False
    """Whether a message without a body, `body=None`, can be published; without, it is refused."""

    @abstractmethod
    def make_adapter(self, **options: Any) -> Adapter:
        """An adapter that is not open yet, with a short reconnect backoff."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send a message with another client than the adapter: id, body and headers unchanged."""

    @abstractmethod
    def dead_letters(self, subject: str) -> Sequence[Message]:
        """The current messages in the subject's dead-letter target."""

    @abstractmethod
    def reason(self, letter: Message) -> str:
        """The reason in the headers or the record of a dead letter."""

    @abstractmethod
    def cut(self, adapter: Adapter) -> None:
        """Break the adapter's connection, as a network fault does, so that its deliveries are repeated."""

    def refused(self, subject: str) -> Message | None:
        """A message, for this subject or another one, that `publish` always refuses; None: it refuses none."""
        del subject
        return None

    def prepare(self, subject: str) -> None:  # noqa: B027 - most brokers need nothing
        """Create a queue or topic, where the broker does not do so automatically."""

    # Verbs

    def subject(self) -> str:
        """A new subject."""
        name = f"contract-{secrets.token_hex(6)}"
        self.prepare(name)
        return name

    def opened(self, *subjects: str, **options: Any) -> Adapter:
        """An open adapter for these subjects, which is closed after the test."""
        adapter = self.make_adapter(**options)
        self._opened.append(adapter)
        registry, checker = Registry(), MemoryChecker()
        adapter.open(
            [
                registry.consumer(subject, group="contract", checker=checker)(lambda _: None)
                for subject in subjects
            ]
        )
        return adapter

    def teardown_method(self) -> None:
        """Close what the test has opened; pytest calls it."""
        for adapter in self._opened:
            adapter.close()
        self._opened.clear()

    @property
    def _opened(self) -> list[Adapter]:
        opened: list[Adapter] = self.__dict__.setdefault("_adapters_opened", [])
        return opened

    @staticmethod
    def receive(adapter: Adapter, count: int = 1, within_s: float = DEADLINE_S) -> list[Delivery]:
        """Exactly `count` deliveries."""
        deliveries: list[Delivery] = []
        deadline = time.monotonic() + within_s
        while len(deliveries) < count:
            assert time.monotonic() < deadline, f"{len(deliveries)} of {count} deliveries"
            deliveries += adapter.receive(count - len(deliveries), 0.1)
        return deliveries

    @staticmethod
    def nothing_comes(adapter: Adapter, for_s: float = 0.7) -> None:
        """Assert that no delivery arrives for a while."""
        until_ = time.monotonic() + for_s
        while time.monotonic() < until_:
            assert adapter.receive(10, 0.1) == []

    def message(self, subject: str, id: str = "m-1", **headers: str) -> Message:
        """A message to send."""
        return Message(subject, f"body of {id}".encode(), id=id, headers=headers)

    # Receiving

    @staticmethod
    def receives_nothing(adapter: Adapter) -> bool:
        """Let the adapter do its upkeep, and assert that no delivery arrives."""
        assert adapter.receive(10, 0.05) == []
        return True

    def one_dead_letter(self, subject: str) -> Message:
        """The only dead letter of a subject, as soon as it arrives."""
        letters: Sequence[Message] = until(lambda: self.dead_letters(subject), "a dead letter")
        (letter,) = letters
        return letter


def until(look: Callable[[], Any], what: str) -> Any:
    """Poll `look` until it returns a true value, and return that."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {DEADLINE_S:g} s: {what}")


def publish_error(adapter: Adapter, messages: Sequence[Message]) -> PublishError:
    """The error with which an adapter publishes these messages, the only one alone."""
    try:
        if len(messages) == 1:
            adapter.publish(messages[0])
        else:
            adapter.publish_many(messages)
    except PublishError as error:
        return error
    raise AssertionError("no PublishError")
