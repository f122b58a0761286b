"""The contract of receiving and publishing."""

from __future__ import annotations

import threading
import time

from idempotent.message import Message
from idempotent.testing.adapter_contract.base import (
    ACK,
    BODY,
    DEADLINE_S,
    AdapterContractBase,
    publish_error,
    until,
)


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

    def test_it_knows_whether_it_is_connected(self) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        until(lambda: self.receives_nothing(adapter) and adapter.connected, "a connection")
