"""Cancellations of `await worker.serve()`: in any phase, again and again, and at the end of the program."""

import asyncio
import threading

import pytest

from idempotent import Message, Registry, Worker
from idempotent.adapters import Delivery, MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.worker import WorkerSummary
from tests.worker.running import SUBJECT, WAIT_S, assert_nothing_is_left, emptying, eventually, publish
from tests.worker.tasks.scopes import BEGINNINGS, Begin, InScope


@pytest.mark.parametrize("begin", BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_second_cancellation_does_not_wait_for_handlers(
    registry: Registry, broker: MemoryBroker, begin: Begin[WorkerSummary]
) -> None:
    checker, begun, cancelled = MemoryChecker(), [], []

    @registry.consumer(SUBJECT, checker=checker)
    async def handle(message: Message) -> None:
        begun.append(message.id)
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            cancelled.append(message.id)
            raise

    async def serve() -> None:
        worker = Worker(registry, MemoryAdapter(broker), concurrency=3, drain_timeout_s=60)
        serving = begin(worker.serve())
        await eventually(lambda: len(begun) == 3)
        serving.cancel()
        await asyncio.sleep(0.1)
        assert not serving.done()
        assert not cancelled
        # A scope repeats its own cancellation; a second one comes from elsewhere.
        (serving.task if isinstance(serving, InScope) else serving).cancel()
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(asyncio.CancelledError):
                await serving

    publish(broker, *range(10))
    asyncio.run(serve())
    assert cancelled == begun
    assert broker.backlog(SUBJECT) == 10
    assert broker._queues[SUBJECT].unsettled == 0
    assert_nothing_is_left(checker)


class Slow(MemoryAdapter):
    """Notes the phase that it is in, and stays there for a moment."""

    phase = ""

    def _stay(self, phase: str) -> None:
        self.phase = phase
        threading.Event().wait(0.1)

    def open(self, consumers) -> None:
        self._stay("open")
        super().open(consumers)

    def _acknowledge(self, delivery: Delivery, result) -> bool:
        self._stay("settle")
        return super()._acknowledge(delivery, result)

    def _give_back(self, delivery: Delivery) -> bool:
        self._stay("requeue")
        return super()._give_back(delivery)

    def close(self) -> None:
        self._stay("close")
        super().close()


@pytest.mark.parametrize("begin", BEGINNINGS.values(), ids=BEGINNINGS)
@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("phase", ["", "open", "idle", "handler", "settle", "requeue", "close"])
def test_a_cancellation_in_any_phase_leaves_nothing_behind(
    registry: Registry, broker: MemoryBroker, phase: str, times: int, begin: Begin[WorkerSummary]
) -> None:
    checker, adapter = MemoryChecker(), Slow(broker)
    runs: list[str] = []

    @registry.consumer(SUBJECT, checker=checker)
    async def handle(message: Message) -> None:
        adapter.phase = "handler"
        await asyncio.sleep(0.3 if phase in ("handler", "requeue") else 0)
        runs.append(str(message.id))

    async def serve() -> None:
        worker = Worker(registry, adapter)
        serving = begin(worker.serve())
        if phase in ("requeue", "close"):
            await eventually(lambda: (adapter.phase and broker._queues[SUBJECT].unsettled == 2) or runs)
            worker.stop()
        if phase == "idle":
            await eventually(lambda: len(runs) == 5 and not broker.backlog(SUBJECT))
        elif phase:
            await eventually(lambda: adapter.phase == phase)
        else:
            await asyncio.sleep(0)  # its first step
        for _ in range(times):
            serving.cancel()
            await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(asyncio.CancelledError):
                await serving
        assert asyncio.all_tasks() == {asyncio.current_task()}

    publish(broker, *range(5))
    asyncio.run(serve())
    assert broker._queues[SUBJECT].unsettled == 0
    assert_nothing_is_left(checker)
    emptying(registry, broker).run()
    assert sorted(runs) == list("01234")


def test_an_end_of_the_program_in_the_middle_stops_the_worker_too(
    registry: Registry, broker: MemoryBroker
) -> None:
    checker, begun = MemoryChecker(), []

    @registry.consumer(SUBJECT, checker=checker)
    async def handle(message: Message) -> None:
        begun.append(message.id)
        await asyncio.sleep(100)

    async def main() -> None:
        kept.append(asyncio.create_task(Worker(registry, MemoryAdapter(broker), concurrency=3).serve()))
        await eventually(lambda: len(begun) == 3)
        # `asyncio.run` cancels all tasks now, those of the handlers too.

    kept: list[asyncio.Task[WorkerSummary]] = []
    publish(broker, *range(10))
    asyncio.run(main())
    assert kept[0].cancelled()
    assert len(begun) == 3
    assert broker.backlog(SUBJECT) == 10
    assert broker._queues[SUBJECT].unsettled == 0
    assert_nothing_is_left(checker)
