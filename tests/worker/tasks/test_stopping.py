"""How a worker with `async def` handlers ends: no task, claim, thread or loop stays behind."""

import asyncio
import threading
import time
from contextlib import contextmanager

import pytest

from idempotent import Message, Outcome, Registry, Result, Worker
from idempotent.adapters import Delivery, MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError
from tests.support.logs import logged
from tests.support.stores import ASYNC, open_store
from tests.worker.running import (
    SUBJECT,
    WAIT_S,
    Recording,
    Running,
    assert_nothing_is_left,
    emptying,
    publish,
    until,
)


def test_stop_finishes_what_runs_and_requeues_the_rest(registry: Registry, broker: MemoryBroker) -> None:
    adapter, checker = Recording(broker), MemoryChecker()
    running_now, gate = threading.Event(), threading.Event()

    @registry.consumer(SUBJECT, checker=checker)
    async def handle(_message: Message) -> None:
        running_now.set()
        await asyncio.to_thread(gate.wait, WAIT_S)

    publish(broker, *range(10))
    worker = Worker(registry, adapter)
    running = Running(worker)
    assert running_now.wait(WAIT_S)
    until(lambda: broker._queues[SUBJECT].unsettled == 2)
    worker.stop()
    until(lambda: "requeue 1" in adapter.events)
    gate.set()
    summary = running.join().summary
    assert adapter.events == ["open", "requeue 1", "ack 0", "close"]
    assert (summary.settled, summary.requeued, summary.abandoned) == (1, 1, 0)
    assert broker.backlog(SUBJECT) == 9
    assert_nothing_is_left(checker)


@pytest.mark.parametrize("batch_size", [1, 10])
def test_what_runs_at_the_end_of_the_drain_is_cancelled_freed_and_requeued(
    registry: Registry, broker: MemoryBroker, batch_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    checker, begun, cancelled = MemoryChecker(), [], []

    @registry.consumer(SUBJECT, checker=checker)
    async def handle(message: Message) -> None:
        begun.append(message.id)
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)  # it cleans up
            cancelled.append(message.id)
            raise

    publish(broker, *range(100))
    worker = emptying(registry, broker, concurrency=30, batch_size=batch_size, drain_timeout_s=0.2)
    running = Running(worker)
    until(lambda: len(begun) == (30 if batch_size == 1 else 10))
    worker.stop()
    summary = running.join().summary
    assert (summary.settled, summary.abandoned) == (0, 0)
    assert summary.requeued >= len(begun)
    assert cancelled == begun
    assert broker.backlog(SUBJECT) == 100
    assert broker._queues[SUBJECT].unsettled == 0
    assert not checker.attempts
    assert_nothing_is_left(checker)
    (said,) = [vars(record) for record in logged(caplog, "drain_timed_out")]
    assert said["running"] == len(begun)
    assert said["waiting"] == (0 if batch_size == 1 else 90)


@pytest.mark.parametrize("kind", ["redis", *ASYNC])
@pytest.mark.parametrize("leased", [True, False])
def test_the_end_of_a_drain_frees_the_keys_in_the_store(
    registry: Registry, broker: MemoryBroker, request: pytest.FixtureRequest, kind: str, leased: bool
) -> None:
    """No lease ends in this test: a key that stayed claimed would be in progress for an hour."""
    if kind == "redis" and not leased:
        pytest.skip("Redis has no transactions")
    with contextmanager(open_store)(kind, request, reuse=True) as store:
        engine = None if leased else store.async_engine(pool_size=40)
        checker = store.leased(lease_s=3600.0) if leased else store.transactional(engine)
        begun, ran, hurry = [], [], threading.Event()

        @registry.consumer(SUBJECT, checker=checker)
        async def handle(message: Message) -> None:
            begun.append(message.id)
            if int(message.id) >= 30 and not hurry.is_set():
                await asyncio.sleep(100)
            ran.append(message.id)

        publish(broker, *range(100))
        worker = emptying(registry, broker, concurrency=30, drain_timeout_s=0.5)
        running = Running(worker)
        until(lambda: len(begun) == 60)
        worker.stop()
        summary = running.join().summary
        assert (summary[Outcome.PROCESSED], summary.abandoned) == (30, 0)
        hurry.set()
        assert emptying(registry, broker, concurrency=30).run()[Outcome.PROCESSED] == 70
        assert sorted(map(int, ran)) == list(range(100))


def test_an_effect_that_is_recorded_while_its_task_is_cancelled_is_a_duplicate_next_time(
    registry: Registry, broker: MemoryBroker
) -> None:
    done = []
    running_now = threading.Event()

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    async def handle(message: Message) -> None:
        running_now.set()
        try:
            await asyncio.sleep(100 if not done else 0)
        except asyncio.CancelledError:
            done.append(message.id)  # and it returns

    publish(broker, "a")
    worker = emptying(registry, broker, drain_timeout_s=0.0)
    running = Running(worker)
    assert running_now.wait(WAIT_S)
    worker.stop()
    running.join()
    emptying(registry, broker).run()
    assert done == ["a"]
    assert broker.backlog(SUBJECT) == 0


@pytest.mark.slow
def test_a_handler_that_refuses_to_be_cancelled_is_left_and_its_message_comes_again(
    registry: Registry, broker: MemoryBroker
) -> None:
    go, begun, stubborn = threading.Event(), threading.Event(), threading.Event()

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    async def handle(_message: Message) -> None:
        begun.set()
        while not go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                stubborn.set()

    publish(broker, "a")
    worker = emptying(registry, broker, drain_timeout_s=0.0)
    running = Running(worker)
    assert begun.wait(WAIT_S)
    worker.stop()
    assert running.join().summary.abandoned == 1
    assert stubborn.is_set()
    assert broker.backlog(SUBJECT) == 1
    go.set()
    until(lambda: "idempotent-loop" not in {thread.name for thread in threading.enumerate()})


@pytest.mark.parametrize("how", ["itself", "in a group", "awaited by nothing"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_inside_a_handler_stops_the_worker_and_its_message_comes_again(
    registry: Registry, broker: MemoryBroker, error: type[BaseException], how: str
) -> None:
    checker, kept = MemoryChecker(), set()

    async def leave() -> None:
        raise error

    @registry.consumer(SUBJECT, checker=checker)
    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        if message.id != "3":
            return
        if how == "itself":
            raise error
        if how == "in a group":
            async with asyncio.TaskGroup() as group:
                group.create_task(leave())
        task = asyncio.create_task(leave())
        kept.add(task)
        await asyncio.sleep(0.05)
        task.exception()

    publish(broker, *range(100))
    adapter = Recording(broker)
    with pytest.raises(error):
        Worker(registry, adapter, concurrency=5).run()
    if how != "awaited by nothing":
        assert "requeue 3" in adapter.events
    assert broker._queues[SUBJECT].unsettled == 0
    assert broker.backlog(SUBJECT) >= 80
    assert not checker.attempts
    assert_nothing_is_left(checker)
    kept.clear()


def test_a_handler_that_cancels_its_own_task_does_not_keep_its_key_or_stop_the_worker(
    registry: Registry, broker: MemoryBroker
) -> None:
    tries = []

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    async def handle(message: Message) -> None:
        if message.id == "odd":
            tries.append(time.monotonic())
            if len(tries) < 3:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
        await asyncio.sleep(0)

    publish(broker, "odd", *range(10))
    assert emptying(registry, broker).run()[Outcome.PROCESSED] == 11
    assert tries[2] - tries[0] > 0.2, "it came again without a pause"


@pytest.mark.parametrize("obeys", [True, False])
def test_a_crash_of_the_adapter_stops_the_worker_but_not_before_the_handlers_are_done(
    registry: Registry, broker: MemoryBroker, obeys: bool
) -> None:
    class Failing(MemoryAdapter):
        broken = False

        def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
            if self.broken:
                raise AdapterError("the broker is gone")
            return super().receive(limit, timeout_s)

        def _give_back(self, delivery: Delivery) -> bool:
            raise AdapterError("the broker is gone")

    running_now, gate, effects = threading.Event(), threading.Event(), []
    checker = MemoryChecker()

    @registry.consumer(SUBJECT, checker=checker)
    async def handle(message: Message) -> None:
        running_now.set()
        while not gate.is_set():  # noqa: ASYNC110 - the test sets it in another thread
            await asyncio.sleep(0.01)
        effects.append(message.id)

    publish(broker, *range(5))
    adapter = Failing(broker)
    running = Running(Worker(registry, adapter, drain_timeout_s=5.0 if obeys else 0.1))
    assert running_now.wait(WAIT_S)
    adapter.broken = True
    time.sleep(0.1)
    if obeys:
        gate.set()
    running.join()
    assert isinstance(running.error, AdapterError)
    assert_nothing_is_left(checker)
    gate.set()
    outcomes = {Outcome.PROCESSED: 4, Outcome.DUPLICATE: 1} if obeys else {Outcome.PROCESSED: 5}
    assert emptying(registry, broker).run().outcomes == outcomes


def test_a_broker_that_fails_in_the_middle_of_many_results_does_not_delay_the_end(
    registry: Registry, broker: MemoryBroker
) -> None:
    class Failing(MemoryAdapter):
        def _acknowledge(self, delivery: Delivery, result: Result) -> bool:
            raise AdapterError("the broker is gone")

    begun, gate = [], asyncio.Event()

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    async def handle(message: Message) -> None:
        begun.append(message.id)
        if len(begun) == 50:
            gate.set()
        await gate.wait()

    publish(broker, *range(50))
    running = Running(Worker(registry, Failing(broker), concurrency=50, drain_timeout_s=60)).join()
    assert isinstance(running.error, AdapterError)


def test_a_thousand_tasks_are_cancelled_in_time(registry: Registry, broker: MemoryBroker) -> None:
    """They have two seconds, of which a quiet machine takes a tenth."""
    checker, begun = MemoryChecker(), []

    @registry.consumer(SUBJECT, checker=checker)
    async def handle(message: Message) -> None:
        begun.append(message.id)
        await asyncio.sleep(100)

    publish(broker, *range(1500))
    worker = emptying(registry, broker, concurrency=1000, drain_timeout_s=0.0)
    running = Running(worker)
    until(lambda: len(begun) == 1000)
    worker.stop()
    assert running.join().summary.abandoned == 0
    assert broker.backlog(SUBJECT) == 1500
    assert broker._queues[SUBJECT].unsettled == 0
    assert_nothing_is_left(checker)


def test_a_generator_exit_of_a_handler_stops_the_worker_too(registry: Registry, broker: MemoryBroker) -> None:
    """It leaves the task like that of a coroutine that is closed."""

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    async def handle(_message: Message) -> None:
        raise GeneratorExit

    publish(broker, "a")
    with pytest.raises(GeneratorExit):
        emptying(registry, broker).run()
    assert broker.backlog(SUBJECT) == 1
