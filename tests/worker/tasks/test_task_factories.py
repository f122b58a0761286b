"""A worker whose tasks an application's own factory makes, and callbacks of the worker that raise."""

import asyncio
import contextvars
import sys
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from idempotent import Message, Outcome, Registry, Worker
from idempotent.adapters import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.worker import WorkerSummary
from tests.worker.running import SUBJECT, WAIT_S, assert_nothing_is_left, emptying, publish

Factory = Callable[..., asyncio.Task[Any]]
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")


def of_older_signature(loop: asyncio.AbstractEventLoop, coroutine: Any) -> asyncio.Task[Any]:
    """As documented up to Python 3.10, and as asyncio calls it for `create_task(coroutine)`."""
    return asyncio.Task(coroutine, loop=loop)


def of_newer_signature(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **options)


FACTORIES = [None, of_newer_signature]
if sys.version_info >= (3, 12):
    FACTORIES.append(asyncio.eager_task_factory)
PLACES = [(run, factory) for run in (asyncio.run, uvloop.run) for factory in FACTORIES]
PLACES.append((asyncio.run, of_older_signature))  # uvloop refuses it: it always names a context
# uvloop names `eager_start`, which asyncio's own factory does not know yet.
if (3, 13) <= sys.version_info < (3, 13, 3):
    PLACES.remove((uvloop.run, asyncio.eager_task_factory))


async def served(worker: Worker, factory: Factory | None) -> WorkerSummary:
    async with asyncio.timeout(WAIT_S):
        asyncio.get_running_loop().set_task_factory(factory)
        return await worker.serve()


@pytest.mark.parametrize(("run", "factory"), PLACES)
def test_each_handler_has_a_task_and_a_context_of_its_own(
    registry: Registry, broker: MemoryBroker, run: Callable[..., WorkerSummary], factory: Factory | None
) -> None:
    checker, seen, tasks = MemoryChecker(), [], set()

    @registry.consumer(SUBJECT, checker=checker)
    async def handle(message: Message) -> None:
        seen.append(tenant.get())
        tenant.set(f"that of {message.id}")
        await asyncio.sleep(0)
        tasks.add(asyncio.current_task())

    async def serve() -> WorkerSummary:
        tenant.set("acme")
        summary = await served(emptying(registry, broker, concurrency=3), factory)
        assert tenant.get() == "acme"
        return summary

    publish(broker, *range(20))
    assert run(serve())[Outcome.PROCESSED] == 20
    assert seen == ["acme"] * 20
    assert len(tasks) == 20
    assert_nothing_is_left(checker)


def fails_at(turn: int) -> Factory:
    calls: list[object] = []

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        if "_process" in coroutine.__qualname__:
            calls.append(coroutine)
            if len(calls) == turn:
                raise OSError("no more tasks")
        return asyncio.Task(coroutine, loop=loop, **options)

    return make


@pytest.mark.parametrize("turn", [1, 5])
def test_a_factory_that_raises_ends_the_worker_and_no_message_stays_taken(
    registry: Registry, broker: MemoryBroker, turn: int
) -> None:
    checker, effects = MemoryChecker(), []

    @registry.consumer(SUBJECT, checker=checker)
    async def handle(message: Message) -> None:
        effects.append(message.id)

    publish(broker, *range(10))
    with pytest.raises(OSError, match="no more tasks"):
        asyncio.run(served(emptying(registry, broker), fails_at(turn)))
    assert len(effects) == turn - 1
    assert broker.backlog(SUBJECT) == 10 - len(effects)
    assert broker._queues[SUBJECT].unsettled == 0
    assert_nothing_is_left(checker)


@pytest.mark.parametrize("is_async", [True, False], ids=["tasks", "threads"])
def test_an_adapter_that_cannot_be_woken_ends_the_worker_when_its_messages_are_settled(
    registry: Registry, broker: MemoryBroker, is_async: bool
) -> None:
    class Deaf(MemoryAdapter):
        def wake(self) -> None:
            raise OSError("the pipe is closed")

    checker, effects = MemoryChecker(), []

    async def awaits(message: Message) -> None:
        effects.append(message.id)

    registry.consumer(SUBJECT, checker=checker)(
        awaits if is_async else lambda given: effects.append(given.id)
    )
    publish(broker, *range(10))
    with pytest.raises(OSError, match="pipe is closed"):
        Worker(registry, Deaf(broker), gc_interval_s=None).run()
    assert len(effects) == 10 - broker.backlog(SUBJECT) > 0
    assert broker._queues[SUBJECT].unsettled == 0
    assert_nothing_is_left(checker)
