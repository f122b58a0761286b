"""What an `async def` handler may do in a worker: time out, group tasks, set context variables, leave tasks running."""

import asyncio
import contextvars
from collections import Counter

from idempotent import Message, Outcome, Registry
from idempotent.adapters import MemoryBroker
from idempotent.checkers import MemoryChecker
from tests.worker.running import SUBJECT, WAIT_S, emptying, publish

PLAIN = "plain"


def test_a_batch_handler_gets_batches_and_process_many_takes_the_others(
    registry: Registry, broker: MemoryBroker
) -> None:
    sizes: list[int] = []

    @registry.consumer(SUBJECT, checker=MemoryChecker(), batch=True)
    async def together(messages: list[Message]) -> None:
        await asyncio.sleep(0.01)
        sizes.append(len(messages))

    @registry.consumer(PLAIN, checker=MemoryChecker(), max_attempts=1)
    async def alone(message: Message) -> None:
        await asyncio.sleep(0)
        if message.id == "7":
            raise ValueError("no")

    publish(broker, *range(100))
    publish(broker, *range(20), subject=PLAIN)
    summary = emptying(registry, broker, concurrency=2, batch_size=10).run()
    assert sum(sizes) == 100
    assert max(sizes) == 10
    assert (summary[Outcome.PROCESSED], summary[Outcome.DEAD]) == (119, 1)


def test_a_task_group_fails_its_message_and_not_the_worker(registry: Registry, broker: MemoryBroker) -> None:
    cancelled: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            cancelled.append("sibling")
            raise

    async def fail() -> None:
        raise ValueError("no")

    @registry.consumer(SUBJECT, checker=MemoryChecker(), max_attempts=1)
    async def handle(message: Message) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
            if message.id == "1":
                group.create_task(wait())
                group.create_task(fail())

    publish(broker, *range(3))
    summary = emptying(registry, broker, concurrency=3).run()
    assert (summary[Outcome.PROCESSED], summary[Outcome.DEAD], cancelled) == (2, 1, ["sibling"])


def test_a_handler_that_takes_too_long_has_failed_and_the_others_go_on(
    registry: Registry, broker: MemoryBroker
) -> None:
    @registry.consumer(SUBJECT, checker=MemoryChecker(), max_attempts=1, handler_timeout_s=0.05)
    async def handle(message: Message) -> None:
        await asyncio.sleep(WAIT_S if message.id == "1" else 0)

    publish(broker, *range(5))
    summary = emptying(registry, broker).run()
    assert (summary[Outcome.PROCESSED], summary[Outcome.DEAD]) == (4, 1)
    (letter,) = broker.dead_letters(SUBJECT)
    assert "handler_timeout_s=0.05" in letter.reason


def test_what_a_handler_sets_in_its_context_no_other_message_sees(
    registry: Registry, broker: MemoryBroker
) -> None:
    tenant: contextvars.ContextVar[str | None] = contextvars.ContextVar("tenant", default=None)
    seen: list[str | None] = []

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    async def handle(message: Message) -> None:
        seen.append(tenant.get())
        tenant.set(str(message.id))
        await asyncio.sleep(0.001)
        seen.append(tenant.get())

    publish(broker, *range(20))
    emptying(registry, broker, concurrency=3).run()
    assert Counter(seen) == Counter([*[None] * 20, *map(str, range(20))])


def test_what_a_handler_leaves_running_is_cancelled_before_the_services_are_left(
    registry: Registry, broker: MemoryBroker
) -> None:
    events: list[str] = []
    kept = set()

    class Service:
        def __enter__(self) -> None:
            events.append("entered")

        def __exit__(self, *_error: object) -> None:
            events.append("left")

    async def background() -> None:
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            events.append("cancelled")

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    async def handle(_message: Message) -> None:
        kept.add(asyncio.create_task(background()))
        await asyncio.sleep(0)

    publish(broker, "a")
    emptying(registry, broker, services=[Service()]).run()
    assert events == ["entered", "cancelled", "left"]
    kept.clear()
