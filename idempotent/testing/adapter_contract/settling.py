"""The contract of settling: what is gone, redelivered, or a dead letter, and what an outage leaves of it."""

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
    DEADLINE_S,
    AdapterContractBase,
    publish_error,
    until,
)
from idempotent.worker import Worker

_DEAD: Final = Result(Outcome.DEAD, error=ValueError("no"))
_BODIES: Final = {"m-1": None, "m-2": b""}
_KEYS: Final = {"m-1": b"\xff", "m-2": b""}


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

    # Lost connections


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
