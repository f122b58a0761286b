"""The contract of settling: what is gone, what is redelivered, what becomes a dead letter."""

from __future__ import annotations

import time

from idempotent.checkers import MemoryChecker
from idempotent.outcomes import Outcome, Result
from idempotent.redrive import redrive
from idempotent.registry import Registry
from idempotent.testing.adapter_contract.base import ACK, DEADLINE_S, AdapterContractBase, until


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
