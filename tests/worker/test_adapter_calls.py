"""The worker calls its adapter from one thread, and only what every adapter has."""

import threading
import time
from collections.abc import Sequence

from idempotent import Consumer, Message, Registry, Result, Worker
from idempotent.adapters import Adapter, Delivery, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.observe.observers import Observer
from tests.worker.running import SUBJECT, Recording, Running, publish, until


def test_one_thread_owns_the_adapter_and_acks_follow_the_effect_on_record(
    registry: Registry, broker: MemoryBroker
) -> None:
    adapter = Recording(broker)

    class Noting(MemoryChecker):
        def _complete(self, completion):
            done = super()._complete(completion)
            adapter.events.append(f"done {completion.claim.key.text.rpartition(':')[2]}")
            return done

    registry.consumer(SUBJECT, checker=Noting())(lambda m: adapter.events.append(f"run {m.id}"))
    publish(broker, *range(50))
    Worker(registry, adapter, concurrency=4).run()
    assert adapter.threads == {threading.current_thread()}
    for number in range(50):
        order = [adapter.events.index(f"{what} {number}") for what in ("run", "done", "ack")]
        assert order == sorted(order)
    assert (adapter.events[0], adapter.events[-1]) == ("open", "close")


def test_an_adapter_needs_nothing_but_the_common_face(registry: Registry) -> None:
    """A broker of one's own: no wake, no end; the worker still settles soon."""

    class Own(Adapter):
        def __init__(self) -> None:
            self.waiting = [Message(SUBJECT, id=str(number)) for number in range(20)]
            self.settled = 0

        def open(self, consumers: Sequence[Consumer]) -> None:
            pass

        def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
            taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
            if not taken:
                time.sleep(timeout_s)
            return [Delivery(message) for message in taken]

        def _acknowledge(self, delivery: Delivery, result: Result) -> bool:
            self.settled += 1
            return True

        def _delay(self, delivery: Delivery, after_s: float) -> bool:
            return self._give_back(delivery)

        def _dead_letter(self, delivery: Delivery, result: Result) -> bool:
            raise AssertionError("no message fails here")

        def _give_back(self, delivery: Delivery) -> bool:
            self.waiting.append(delivery.message)
            return True

        def publish(self, message: Message) -> None:
            self.waiting.append(message)

        def close(self) -> None:
            pass

    registry.consumer(SUBJECT, checker=MemoryChecker())(lambda _: None)
    adapter = Own()
    worker = Worker(registry, adapter)
    running = Running(worker)
    until(lambda: adapter.settled == 20)
    worker.stop()
    assert running.join().summary.settled == 20


def test_an_observer_is_told_before_and_after_each_settlement(
    registry: Registry, broker: MemoryBroker
) -> None:
    adapter = Recording(broker)

    class Noting(Observer):
        def settling(self, message: Message, result: Result) -> None:
            adapter.events.append(f"settling {message.id} {result.outcome.value}")

        def settled(self, message: Message, result: Result) -> None:
            adapter.events.append(f"settled {message.id} {result.outcome.value}")

    registry.observers.add(Noting())
    registry.consumer(SUBJECT, checker=MemoryChecker())(lambda _: None)
    publish(broker, 1)
    Worker(registry, adapter).run()
    assert adapter.events == ["open", "settling 1 processed", "ack 1", "settled 1 processed", "close"]
