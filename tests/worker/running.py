"""What the tests of the worker share: a worker in a thread, and what it processes."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from idempotent import Consumer, Message, Registry, Result, Worker
from idempotent.adapters import Delivery, MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.consumer import AnyConsumer

SUBJECT = "orders"
WAIT_S = 60.0


def publish(broker: MemoryBroker, *ids: object, subject: str = SUBJECT) -> None:
    for each in ids:
        broker.publish(Message(subject, id=str(each)))


def emptying(registry: Registry, broker: MemoryBroker, **options) -> Worker:
    return Worker(registry, MemoryAdapter(broker, until_empty=True), gc_interval_s=None, **options)


def consumer_of(
    registry: Registry,
    handle: Callable[[Any], object],
    *,
    is_async: bool = False,
    **options: Any,
) -> AnyConsumer:
    """A consumer with this handler, or with an `async def` that awaits it in a thread.

    Args:
        registry: gets the consumer.
        handle: the handler.
        is_async: which of them.
        options: of `@consumer`.
    """

    async def awaits(given: Any) -> None:
        await asyncio.to_thread(handle, given)

    options.setdefault("checker", MemoryChecker())
    return registry.consumer(SUBJECT, **options)(awaits if is_async else handle)


class Running:
    """A worker in a thread of its own."""

    _started: ClassVar[list["Running"]] = []

    def __init__(self, worker: Worker) -> None:
        self._started.append(self)
        self.worker = worker
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.summary = self.worker.run()
        except BaseException as error:
            self.error = error

    @classmethod
    def stop_all(cls) -> None:
        while cls._started:
            running = cls._started.pop()
            running.worker.stop()
            running.thread.join(2.0)

    def join(self) -> "Running":
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive(), "the worker does not stop"
        return self


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - other threads make it true
            await asyncio.sleep(0.005)


def assert_nothing_is_left(checker: MemoryChecker) -> None:
    assert not [entry for entry in checker.entries.values() if entry.status.in_progress]
    names = ("idempotent-loop", "idempotent-handler", "idempotent-worker")
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(names)]


class Recording(MemoryAdapter):
    """Notes what happens, in order and in which thread."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, until_empty=True)
        self.events: list[str] = []
        self.threads: set[threading.Thread] = set()

    def _note(self, event: str) -> None:
        self.events.append(event)
        self.threads.add(threading.current_thread())

    def open(self, consumers: Sequence[Consumer]) -> None:
        self._note("open")
        super().open(consumers)

    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        self.threads.add(threading.current_thread())
        return super().receive(limit, timeout_s)

    def _acknowledge(self, delivery: Delivery, result: Result) -> bool:
        self._note(f"ack {delivery.message.id}")
        return super()._acknowledge(delivery, result)

    def _delay(self, delivery: Delivery, after_s: float) -> bool:
        self._note(f"delay {delivery.message.id}")
        return super()._delay(delivery, after_s)

    def _dead_letter(self, delivery: Delivery, result: Result) -> bool:
        self._note(f"dead_letter {delivery.message.id}")
        return super()._dead_letter(delivery, result)

    def _give_back(self, delivery: Delivery) -> bool:
        self._note(f"requeue {delivery.message.id}")
        return super()._give_back(delivery)

    def close(self) -> None:
        self._note("close")
        super().close()
