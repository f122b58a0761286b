"""AdapterContract: what a worker relies on in every adapter, as a test class to derive from."""

from __future__ import annotations

import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from idempotent.adapters.base import Adapter, Delivery
from idempotent.checkers import MemoryChecker
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.redrive import redrive
from idempotent.registry import Registry
from idempotent.worker import Worker

DEADLINE_S: Final = 150.0
_ACK: Final = Result(Outcome.PROCESSED)
_BODY: Final = bytes(range(256))


class AdapterContract(ABC):
    """The tests that prove an adapter. pytest collects them from your subclass.

    Each test has a subject (queue, destination, topic) of its own; `prepare` creates it.
    """

    tells_redelivery: ClassVar[bool] = True
    """Whether the broker marks redeliveries."""

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

    def prepare(self, subject: str) -> None:  # noqa: B027 - most brokers need nothing
        """Create a queue or topic, where the broker does not do so automatically."""

    # Verbs

    def subject(self) -> str:
        """A new subject."""
        name = f"contract-{secrets.token_hex(6)}"
        self.prepare(name)
        return name

    def opened(self, subject: str, **options: Any) -> Adapter:
        """An open adapter, which is closed after the test."""
        adapter = self.make_adapter(**options)
        self._opened.append(adapter)
        consumer = Registry().consumer(subject, group="contract", checker=MemoryChecker())(lambda _: None)
        adapter.open([consumer])
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

    def test_a_message_arrives_as_it_was_sent(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        self.send(Message(subject, _BODY, id="m-1", headers={"colour": "red"}))
        (delivery,) = self.receive(adapter)
        received = delivery.message
        assert (received.subject, received.id, received.body) == (subject, "m-1", _BODY)
        assert received.headers["colour"] == "red"
        assert not received.redelivered
        assert received.position is not None
        adapter.settle(delivery, _ACK)

    def test_what_the_adapter_publishes_arrives(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        adapter.publish(Message(subject, _BODY, id="m-1", headers={"colour": "red"}))
        (delivery,) = self.receive(adapter)
        assert (delivery.message.id, delivery.message.body) == ("m-1", _BODY)
        assert delivery.message.headers["colour"] == "red"
        adapter.settle(delivery, _ACK)

    def test_what_it_publishes_together_arrives_in_order(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        sent = [f"m-{number}" for number in range(1200)]
        adapter.publish_many(
            [Message(subject, name.encode(), id=name, headers={"nr": name}) for name in sent]
        )
        adapter.publish_many([])
        got: list[str] = []
        while len(got) < len(sent):
            for delivery in self.receive(adapter, 100):
                message = delivery.message
                assert message.id == message.headers["nr"] == message.body.decode()
                got.append(str(message.id))
                adapter.settle(delivery, _ACK)
        assert got == sent

    def test_no_more_than_asked_for_are_received(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        for number in range(5):
            self.send(self.message(subject, f"m-{number}"))
        first = self.receive(adapter)
        assert adapter.receive(0, 0.0) == []
        rest = self.receive(adapter, 4)
        assert len({d.message.id for d in first + rest}) == 5
        for delivery in first + rest:
            adapter.settle(delivery, _ACK)

    def test_an_empty_subject_delivers_nothing_in_time(self) -> None:
        adapter = self.opened(self.subject())
        began = time.monotonic()
        assert adapter.receive(10, 0.3) == []
        assert time.monotonic() - began < DEADLINE_S / 3

    def test_wake_ends_a_wait(self) -> None:
        adapter = self.opened(self.subject())
        adapter.receive(1, 1.0)
        timer = threading.Timer(0.2, adapter.wake)
        timer.start()
        began = time.monotonic()
        adapter.receive(1, DEADLINE_S)
        assert time.monotonic() - began < DEADLINE_S / 2
        timer.join()

    # Settling

    def test_what_is_acknowledged_never_comes_again(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        for number in range(3):
            self.send(self.message(subject, f"m-{number}"))
        for delivery in self.receive(adapter, 3):
            adapter.settle(delivery, _ACK)
        self.nothing_comes(adapter)
        adapter.close()
        self.nothing_comes(self.opened(subject))

    def test_what_is_not_settled_comes_again_when_the_adapter_closes(self) -> None:
        subject = self.subject()
        first = self.opened(subject)
        for number in range(2):
            self.send(self.message(subject, f"m-{number}"))
        acknowledged, _ = self.receive(first, 2)
        first.settle(acknowledged, _ACK)
        first.close()
        second = self.opened(subject)
        (again,) = self.receive(second)
        assert again.message.id == "m-1"
        assert again.message.redelivered or not self.tells_redelivery
        second.settle(again, _ACK)
        self.nothing_comes(second)

    def test_what_is_requeued_comes_again(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        self.send(self.message(subject))
        (delivery,) = self.receive(adapter)
        adapter.requeue(delivery)
        (again,) = self.receive(adapter)
        assert again.message.id == "m-1"
        adapter.settle(again, _ACK)
        self.nothing_comes(adapter)

    def test_what_failed_comes_again_later_as_the_same_message(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        self.send(self.message(subject, colour="red"))
        (delivery,) = self.receive(adapter)
        adapter.settle(delivery, Result(Outcome.FAILED, error=ValueError("no"), retry_after_s=1.0))
        failed_at = time.monotonic()
        (again,) = self.receive(adapter)
        assert time.monotonic() - failed_at > 0.8
        assert (again.message.id, again.message.body) == ("m-1", b"body of m-1")
        assert again.message.headers["colour"] == "red"
        adapter.settle(again, _ACK)
        self.nothing_comes(adapter)

    def test_a_dead_message_is_kept_with_its_reason_and_never_comes_again(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        self.send(self.message(subject, colour="red"))
        (delivery,) = self.receive(adapter)
        adapter.settle(delivery, Result(Outcome.DEAD, error=ValueError("no such customer")))
        self.nothing_comes(adapter)
        letter = self.one_dead_letter(subject)
        assert (letter.id, letter.body) == ("m-1", b"body of m-1")
        assert letter.headers["colour"] == "red"
        assert self.reason(letter) == "ValueError: no such customer"

    def test_a_reason_of_many_lines_is_no_trouble(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        self.send(self.message(subject))
        (delivery,) = self.receive(adapter)
        adapter.settle(delivery, Result(Outcome.DEAD, error=ValueError("line\nline: \0\N{SNOWMAN}" * 300)))
        assert self.reason(self.one_dead_letter(subject)).startswith("ValueError: line")

    def test_a_redrive_brings_a_dead_letter_back_as_the_message_it_was(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        self.send(self.message(subject, colour="red"))
        (delivery,) = self.receive(adapter)
        adapter.settle(delivery, Result(Outcome.DEAD, error=ValueError("no")))
        until(lambda: self.receives_nothing(adapter) and self.dead_letters(subject), "a dead letter")
        consumer = Registry().consumer(subject, group="contract", checker=MemoryChecker())(lambda _: None)
        assert redrive(consumer, self.make_adapter(), limit=1, idle_s=DEADLINE_S).returned == 1
        (again,) = self.receive(adapter)
        assert (again.message.id, again.message.body) == ("m-1", b"body of m-1")
        assert again.message.headers["colour"] == "red"
        adapter.settle(again, _ACK)

    def test_it_knows_whether_it_is_connected(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        until(lambda: self.receives_nothing(adapter) and adapter.connected, "a connection")

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

    def test_settling_twice_harms_nobody(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        for number in range(2):
            self.send(self.message(subject, f"m-{number}"))
        first, second = self.receive(adapter, 2)
        adapter.settle(first, _ACK)
        adapter.settle(first, _ACK)
        adapter.requeue(first)
        assert adapter.stale_settlements == 2
        adapter.settle(second, _ACK)
        self.nothing_comes(adapter)

    # Lost connections

    def test_after_a_lost_connection_everything_unsettled_comes_again_and_old_answers_are_dropped(
        self,
    ) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        for number in range(3):
            self.send(self.message(subject, f"m-{number}"))
        old = self.receive(adapter, 3)
        self.cut(adapter)
        new = self.receive(adapter, 3)
        assert sorted(str(d.message.id) for d in new) == ["m-0", "m-1", "m-2"]
        for delivery in old:
            adapter.settle(delivery, _ACK)
        assert adapter.stale_settlements == 3
        for delivery in new:
            adapter.settle(delivery, _ACK)
        self.nothing_comes(adapter)

    def test_a_worker_survives_lost_connections_and_each_effect_happens_once(self) -> None:
        subject = self.subject()
        adapter = self.make_adapter()
        done: list[str] = []
        registry = Registry()

        @registry.consumer(subject, group="contract", checker=MemoryChecker(lease_s=5.0))
        def handle(message: Message) -> None:
            time.sleep(0.002)
            done.append(str(message.id))

        worker = Worker(registry, adapter, concurrency=4, batch_size=3, gc_interval_s=None)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            for number in range(100):
                self.send(self.message(subject, f"m-{number}"))
                if number in (30, 60):
                    time.sleep(0.3)
                    self.cut(adapter)
            until(lambda: len(done) >= 100, "a hundred effects")
            time.sleep(0.3)
        finally:
            worker.stop()
            thread.join(DEADLINE_S)
        assert sorted(done) == sorted(f"m-{number}" for number in range(100))


def until(look: Callable[[], Any], what: str) -> Any:
    """Poll `look` until it returns a true value, and return that."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {DEADLINE_S:g} s: {what}")
