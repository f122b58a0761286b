"""AdapterContract: what a worker relies on in every adapter, as a test class to derive from."""

from __future__ import annotations

import threading
import time
from typing import Final

from idempotent.adapters.base import Adapter
from idempotent.checkers import MemoryChecker
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.redrive import redrive
from idempotent.registry import Registry
from idempotent.testing.adapter_contract.base import (
    ACK,
    BODY,
    DEADLINE_S,
    AdapterContractBase,
    publish_error,
    until,
)
from idempotent.worker import Worker

_DEAD: Final = Result(Outcome.DEAD, error=ValueError("no"))
_BODIES: Final = {"m-1": None, "m-2": b""}
_KEYS: Final = {"m-1": b"\xff", "m-2": b""}


class ReceivingContract(AdapterContractBase):
    """Messages arrive as they were sent, and a wait can be ended."""

    def test_a_message_arrives_as_it_was_sent(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        self.send(Message(subject, BODY, id="m-1", headers={"colour": "red"}))
        (delivery,) = self.receive(adapter)
        received = delivery.message
        assert (received.subject, received.id, received.body) == (subject, "m-1", BODY)
        assert received.headers["colour"] == "red"
        assert not received.redelivered or not self.tells_redelivery
        assert received.position is not None
        adapter.settle(delivery, ACK)

    def test_what_the_adapter_publishes_arrives(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        adapter.publish(Message(subject, BODY, id="m-1", headers={"colour": "red"}))
        (delivery,) = self.receive(adapter)
        assert (delivery.message.id, delivery.message.body) == ("m-1", BODY)
        assert delivery.message.headers["colour"] == "red"
        adapter.settle(delivery, ACK)

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
                assert message.body == str(message.id).encode()
                assert message.id == message.headers["nr"]
                got.append(str(message.id))
                adapter.settle(delivery, ACK)
        assert got == sent

    def test_of_messages_published_together_those_refused_are_named_and_the_others_arrive(self) -> None:
        subject = self.subject()
        refused = self.refused(subject)
        if refused is None:
            return
        adapter = self.opened(subject)
        messages = [self.message(subject, f"m-{number}") for number in range(3)]
        for place in (1, 3):
            messages.insert(place, refused)
        error = publish_error(adapter, messages)
        assert (set(error.refused), set(error.unknown)) == ({1, 3}, set())
        assert all(error.refused.values())
        assert repr(refused.id) in str(error)
        deliveries = self.receive(adapter, 3)
        assert {delivery.message.id for delivery in deliveries} == {"m-0", "m-1", "m-2"}
        for delivery in deliveries:
            adapter.settle(delivery, ACK)
        self.nothing_comes(adapter)

    def test_a_refused_message_is_an_error_and_the_next_one_arrives(self) -> None:
        subject = self.subject()
        refused = self.refused(subject)
        if refused is None:
            return
        adapter = self.opened(subject)
        error = publish_error(adapter, [refused])
        assert (set(error.refused), set(error.unknown)) == ({0}, set())
        adapter.publish(self.message(subject))
        (delivery,) = self.receive(adapter)
        assert delivery.message.id == "m-1"
        adapter.settle(delivery, ACK)

    def test_an_adapter_opened_without_consumers_publishes_and_receives_nothing(self) -> None:
        subject = self.subject()
        self.send(self.message(subject, "m-0"))
        publisher = self.opened()
        until(lambda: self.receives_nothing(publisher) and publisher.connected, "a connection")
        publisher.publish(self.message(subject, "m-1"))
        publisher.publish_many([self.message(subject, f"m-{number}") for number in range(2, 5)])
        assert self.receives_nothing(publisher)
        publisher.close()
        adapter = self.opened(subject)
        deliveries = self.receive(adapter, 5)
        assert [delivery.message.id for delivery in deliveries] == [f"m-{number}" for number in range(5)]
        for delivery in deliveries:
            adapter.settle(delivery, ACK)
        self.nothing_comes(adapter)

    def test_wake_ends_the_wait_of_an_adapter_opened_without_consumers(self) -> None:
        publisher = self.opened()
        publisher.receive(1, 1.0)
        timer = threading.Timer(0.2, publisher.wake)
        timer.start()
        began = time.monotonic()
        publisher.receive(1, DEADLINE_S)
        assert time.monotonic() - began < DEADLINE_S / 2
        timer.join()

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
            adapter.settle(delivery, ACK)

    def test_a_full_subject_does_not_delay_another(self) -> None:
        if not self.keeps_back:
            return
        slow, fast = self.subject(), self.subject()
        adapter = self.opened(slow, fast)
        for number in range(20):
            self.send(self.message(slow, f"slow-{number}"))
        held = self.receive(adapter)
        adapter.full_subjects = {slow}
        for number in range(3):
            self.send(self.message(fast, f"fast-{number}"))
        got = self.receive(adapter, 3)
        assert [delivery.message.id for delivery in got] == ["fast-0", "fast-1", "fast-2"]
        assert adapter.receive(10, 0.3) == []
        adapter.full_subjects = ()
        held += self.receive(adapter, 19)
        assert [delivery.message.id for delivery in held] == [f"slow-{number}" for number in range(20)]
        for delivery in held + got:
            adapter.settle(delivery, ACK)

    def test_messages_of_a_paused_subject_wait_until_it_is_resumed(self) -> None:
        if not self.keeps_back:
            return
        paused, other = self.subject(), self.subject()
        adapter = self.opened(paused, other)
        for number in range(5):
            self.send(self.message(paused, f"paused-{number}"))
        running, not_begun = self.receive(adapter, 2)
        adapter.full_subjects = adapter.paused_subjects = {paused}
        adapter.receive(0, 0.0)
        adapter.requeue(not_begun)
        adapter.settle(running, ACK)
        for number in range(3):
            self.send(self.message(other, f"other-{number}"))
        got = self.receive(adapter, 3)
        assert {delivery.message.id for delivery in got} == {"other-0", "other-1", "other-2"}
        assert adapter.receive(10, 0.3) == []
        adapter.full_subjects = adapter.paused_subjects = ()
        rest = self.receive(adapter, 4)
        left = {f"paused-{number}" for number in range(5)} - {running.message.id}
        assert {delivery.message.id for delivery in rest} == left
        for delivery in got + rest:
            adapter.settle(delivery, ACK)
        assert adapter.stale_settlements == 0

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

    def test_it_knows_whether_it_is_connected(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        until(lambda: self.receives_nothing(adapter) and adapter.connected, "a connection")


class SettlingContract(AdapterContractBase):
    """Each delivery is settled once."""

    def test_what_is_acknowledged_never_comes_again(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        for number in range(3):
            self.send(self.message(subject, f"m-{number}"))
        for delivery in self.receive(adapter, 3):
            adapter.settle(delivery, ACK)
        self.nothing_comes(adapter)
        adapter.close()
        self.nothing_comes(self.opened(subject))

    def test_what_is_not_settled_comes_again_when_the_adapter_closes(self) -> None:
        subject = self.subject()
        first = self.opened(subject)
        for number in range(2):
            self.send(self.message(subject, f"m-{number}"))
        acknowledged, _ = self.receive(first, 2)
        first.settle(acknowledged, ACK)
        first.close()
        second = self.opened(subject)
        (again,) = self.receive(second)
        assert again.message.id == "m-1"
        assert again.message.redelivered or not self.tells_redelivery
        second.settle(again, ACK)
        self.nothing_comes(second)

    def test_what_is_requeued_comes_again(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        self.send(self.message(subject))
        (delivery,) = self.receive(adapter)
        adapter.requeue(delivery)
        (again,) = self.receive(adapter)
        assert again.message.id == "m-1"
        adapter.settle(again, ACK)
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
        adapter.settle(again, ACK)
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
        until(lambda: self.receives_nothing(adapter) and self.dead_letters(subject), "a dead letter")
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
        adapter.settle(again, ACK)

    def test_the_key_of_a_message_stays_when_it_fails_dies_and_is_redriven(self) -> None:
        if not self.keeps_key:
            return
        subject = self.subject()
        adapter = self.opened(subject)
        adapter.publish_many([Message(subject, id=name, key=key) for name, key in _KEYS.items()])
        for result in (Result(Outcome.FAILED, error=ValueError("no"), retry_after_s=0.1), _DEAD):
            for delivery in self.receive(adapter, 2):
                assert delivery.message.key == _KEYS[str(delivery.message.id)]
                adapter.settle(delivery, result)
        until(lambda: self.receives_nothing(adapter) and len(self.dead_letters(subject)) == 2, "dead letters")
        consumer = Registry().consumer(subject, group="contract", checker=MemoryChecker())(lambda _: None)
        assert redrive(consumer, self.make_adapter(), limit=2, idle_s=DEADLINE_S).returned == 2
        for delivery in self.receive(adapter, 2):
            assert delivery.message.key == _KEYS[str(delivery.message.id)]
            adapter.settle(delivery, ACK)

    def test_a_tombstone_stays_one_or_is_refused(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        messages = [Message(subject, body, id=name) for name, body in _BODIES.items()]
        if not self.keeps_tombstones:
            error = publish_error(adapter, messages)
            assert (set(error.refused), set(error.unknown)) == ({0}, set())
            assert "tombstone" in error.refused[0]
            return
        adapter.publish_many(messages)
        for result in (Result(Outcome.FAILED, error=ValueError("no"), retry_after_s=0.1), _DEAD):
            for delivery in self.receive(adapter, 2):
                assert delivery.message.body == _BODIES[str(delivery.message.id)]
                adapter.settle(delivery, result)
        letters = until(
            lambda: (
                self.receives_nothing(adapter)
                and self.dead_letters(subject)[1:]
                and self.dead_letters(subject)
            ),
            "dead letters",
        )
        assert {letter.id: letter.body for letter in letters} == _BODIES
        consumer = Registry().consumer(subject, group="contract", checker=MemoryChecker())(lambda _: None)
        assert redrive(consumer, self.make_adapter(), limit=2, idle_s=DEADLINE_S).returned == 2
        for delivery in self.receive(adapter, 2):
            assert delivery.message.body == _BODIES[str(delivery.message.id)]
            adapter.settle(delivery, ACK)

    def test_settling_twice_harms_nobody(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        for number in range(2):
            self.send(self.message(subject, f"m-{number}"))
        first, second = self.receive(adapter, 2)
        adapter.settle(first, ACK)
        adapter.settle(first, ACK)
        adapter.requeue(first)
        assert adapter.stale_settlements == 2
        adapter.settle(second, ACK)
        self.nothing_comes(adapter)


class OutagesContract(AdapterContractBase):
    """A lost connection loses no message."""

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
            adapter.settle(delivery, ACK)
        assert adapter.stale_settlements == 3
        for delivery in new:
            adapter.settle(delivery, ACK)
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
                    self.cut_after(number // 2, done, adapter)
            until(lambda: len(done) >= 100, "a hundred effects")
            time.sleep(0.3)
        finally:
            worker.stop()
            thread.join(DEADLINE_S)
        assert sorted(done) == sorted(f"m-{number}" for number in range(100))

    def cut_after(self, effects: int, done: list[str], adapter: Adapter) -> None:
        until(lambda: len(done) >= effects, "the effects before a lost connection")
        self.cut(adapter)


class AdapterContract(ReceivingContract, SettlingContract, OutagesContract):
    """The tests that prove an adapter. pytest collects them from your subclass; see `AdapterContractBase`."""
