"""`await worker.serve()`: a worker inside the application's event loop, until it is cancelled."""

import asyncio
import contextvars
import signal
import threading
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from idempotent import Message, Outcome, Registry, Worker
from idempotent.adapters import Delivery, MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError, ConfigurationError
from idempotent.worker import WorkerSummary
from tests.support.logs import logged
from tests.worker.running import SUBJECT, Recording, assert_nothing_is_left, emptying, eventually, publish
from tests.worker.tasks.scopes import BEGINNINGS, Begin


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_handlers_run_on_the_caller_s_loop_and_the_adapter_in_one_other_thread(
    registry: Registry, broker: MemoryBroker, run: Callable[[Awaitable[WorkerSummary]], WorkerSummary]
) -> None:
    loops, checker, adapter = set(), MemoryChecker(), Recording(broker)

    @registry.consumer(SUBJECT, checker=checker)
    async def handle(_message: Message) -> None:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0.001)

    @registry.consumer("plain", checker=checker)
    def plain(_message: Message) -> None:
        assert threading.current_thread() is not threading.main_thread()

    async def serve() -> WorkerSummary:
        summary = await Worker(registry, adapter, concurrency=20, gc_interval_s=None).serve()
        assert loops == {asyncio.get_running_loop()}
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return summary

    publish(broker, *range(300))
    publish(broker, *range(20), subject="plain")
    assert run(serve())[Outcome.PROCESSED] == 320
    (thread,) = adapter.threads
    assert thread.name == "idempotent-worker"
    assert_nothing_is_left(checker)


def test_handlers_of_both_kinds_see_the_caller_s_context_variables(
    registry: Registry, broker: MemoryBroker
) -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")
    seen: list[str] = []

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    async def handle(_message: Message) -> None:
        seen.append(tenant.get())
        tenant.set("a handler's")

    @registry.consumer("plain", checker=MemoryChecker())
    def plain(_message: Message) -> None:
        seen.append(tenant.get())

    async def serve() -> None:
        tenant.set("acme")
        await emptying(registry, broker).serve()
        assert tenant.get() == "acme"

    publish(broker, *range(3))
    publish(broker, 1, subject="plain")
    asyncio.run(serve())
    assert seen == ["acme"] * 4


def test_stop_ends_it_and_signals_are_left_to_the_application(
    registry: Registry, broker: MemoryBroker
) -> None:
    begun = []

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    async def handle(message: Message) -> None:
        begun.append(message.id)

    async def serve() -> WorkerSummary:
        worker = Worker(registry, MemoryAdapter(broker))
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        serving = asyncio.create_task(worker.serve())
        await eventually(lambda: begun)
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
        worker.stop()
        return await serving

    publish(broker, "a")
    assert asyncio.run(serve())[Outcome.PROCESSED] == 1


@pytest.mark.parametrize("begin", BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_cancellation_drains_in_order_and_then_goes_on(
    registry: Registry, broker: MemoryBroker, begin: Begin[WorkerSummary]
) -> None:
    adapter, checker, begun = Recording(broker), MemoryChecker(), []

    class Service:
        def __enter__(self) -> None:
            adapter.events.append("entered")

        def __exit__(self, *_error: object) -> None:
            adapter.events.append("left")

    @registry.consumer(SUBJECT, checker=checker)
    async def handle(message: Message) -> None:
        begun.append(message.id)
        await eventually(lambda: "requeue 1" in adapter.events)
        adapter.events.append(f"ran {message.id}")

    async def serve() -> None:
        worker = Worker(registry, adapter, services=[Service()])
        serving = begin(worker.serve())
        await eventually(lambda: begun and broker._queues[SUBJECT].unsettled == 2)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert serving.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    publish(broker, *range(10))
    asyncio.run(serve())
    assert adapter.events == ["open", "entered", "requeue 1", "ran 0", "ack 0", "left", "close"]
    assert_nothing_is_left(checker)


def test_what_ends_the_worker_is_raised(registry: Registry, broker: MemoryBroker) -> None:
    class Failing(MemoryAdapter):
        def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
            raise AdapterError("the broker is gone")

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    async def handle(_message: Message) -> None:
        raise AssertionError("nothing is received")

    async def serve(worker: Worker) -> None:
        with pytest.raises(AdapterError, match="is gone"):
            await worker.serve()
        with pytest.raises(ConfigurationError, match="runs once"):
            await worker.serve()

    asyncio.run(serve(Worker(registry, Failing(broker))))


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_inside_a_handler_ends_the_program_after_the_worker(
    registry: Registry, broker: MemoryBroker, error: type[BaseException]
) -> None:
    checker = MemoryChecker()

    @registry.consumer(SUBJECT, checker=checker)
    async def handle(_message: Message) -> None:
        raise error

    publish(broker, *range(5))
    with pytest.raises(error):
        asyncio.run(Worker(registry, MemoryAdapter(broker)).serve())
    assert broker.backlog(SUBJECT) == 5
    assert broker._queues[SUBJECT].unsettled == 0
    assert_nothing_is_left(checker)


def test_two_workers_serve_on_one_loop(registry: Registry, broker: MemoryBroker) -> None:
    checker = MemoryChecker()
    for subject in ("a", "b"):

        @registry.consumer(subject, checker=checker)
        async def handle(_message: Message) -> None:
            await asyncio.sleep(0)

        publish(broker, *range(100), subject=subject)

    async def serve() -> list[WorkerSummary]:
        workers = [emptying(registry, broker, consumers=[f"{name}:default"]) for name in ("a", "b")]
        return await asyncio.gather(*(worker.serve() for worker in workers))

    assert [summary.settled for summary in asyncio.run(serve())] == [100, 100]
    assert_nothing_is_left(checker)


def test_run_in_a_running_loop_is_refused(registry: Registry, broker: MemoryBroker) -> None:
    async def main() -> None:
        emptying(registry, broker).run()

    with pytest.raises(ConfigurationError, match=r"await worker\.serve"):
        asyncio.run(main())


def test_a_worker_that_fails_is_in_the_log_before_anything_awaits_it(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(MemoryAdapter):
        def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
            raise AdapterError("the broker refuses the login")

    async def main() -> None:
        serving = asyncio.create_task(Worker(registry, Broken(broker)).serve())
        await asyncio.wait([serving])
        (failed,) = [vars(record) for record in logged(caplog, "worker_failed")]
        assert "refuses the login" in failed["error"]
        with pytest.raises(AdapterError):
            await serving

    registry.consumer(SUBJECT, checker=MemoryChecker())(lambda _: None)
    asyncio.run(main())
