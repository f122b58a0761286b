"""What the cancellation of a function means: `on_cancel`, under asyncio and anyio."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from idempotent import (
    ConfigurationError,
    DeadKeyError,
    InProgressError,
    Message,
    Outcome,
    Registry,
    idempotent,
    once,
)
from idempotent.block import Once
from idempotent.checkers import MemoryChecker, SqlChecker
from idempotent.claims import ClaimRequest, Completion, new_owner
from idempotent.errors import DuplicateError, StoreUnavailableError
from idempotent.keys import KeySpace
from idempotent.migrations import upgrade
from idempotent.observe import Observer
from tests.functions.kinds import Kind


async def by_task(call: Callable[[], Awaitable[Any]], entered: asyncio.Event) -> str:
    task = asyncio.ensure_future(call())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    return "cancelled"


async def by_timeout(call: Callable[[], Awaitable[Any]], entered: asyncio.Event) -> str:
    try:
        async with asyncio.timeout(None) as limit:
            asyncio.get_running_loop().create_task(_when(entered, lambda: limit.reschedule(0.0)))
            await call()
            await asyncio.sleep(30)
    except TimeoutError:
        assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]
        return "cancelled"
    return "went on"


async def by_scope(call: Callable[[], Awaitable[Any]], entered: asyncio.Event) -> str:
    with anyio.CancelScope() as scope:
        asyncio.get_running_loop().create_task(_when(entered, scope.cancel))
        await call()
        await asyncio.sleep(30)
    await asyncio.sleep(0)
    return "cancelled" if scope.cancelled_caught else "went on"


async def _when(entered: asyncio.Event, act: Callable[[], object]) -> None:
    await entered.wait()
    act()


@pytest.fixture(params=[by_task, by_timeout, by_scope], ids=lambda way: way.__name__)
def way(request: pytest.FixtureRequest) -> Any:
    return request.param


class Charging:
    """A function that is cancelled in the middle of its effect."""

    def __init__(self, kind: Kind, **options: Any) -> None:
        if not kind.is_async:
            pytest.skip("no task cancels a plain function")
        self.effects: list[str] = []
        self.entered = asyncio.Event()

        @idempotent(kind.checker, group="tests", key="order", name="charge", **options)
        async def charge(order: str) -> str:
            self.entered.set()
            await asyncio.sleep(0.05)
            self.effects.append(order)
            return order

        self.charge = charge

    def call(self) -> Awaitable[str]:
        return self.charge("a")


def test_a_function_that_finishes_is_recorded_and_then_its_task_is_cancelled(kind: Kind, way: Any) -> None:
    charging = Charging(kind, on_cancel="finish")

    async def run() -> None:
        assert await way(charging.call, charging.entered) == "cancelled"
        assert charging.effects == ["a"]
        assert await charging.call() == "a"

    asyncio.run(run())
    assert charging.effects == ["a"]


def test_a_function_that_parks_leaves_its_key_to_a_person(kind: Kind, way: Any) -> None:
    charging = Charging(kind, on_cancel="park")

    async def run() -> None:
        assert await way(charging.call, charging.entered) == "cancelled"
        with pytest.raises(DeadKeyError, match="effect unknown: its handler was cancelled"):
            await charging.call()

    asyncio.run(run())
    assert charging.effects == []


def test_a_function_that_retries_runs_again(kind: Kind, way: Any) -> None:
    charging = Charging(kind)

    async def run() -> None:
        assert await way(charging.call, charging.entered) == "cancelled"
        assert await charging.call() == "a"

    asyncio.run(run())
    assert charging.effects == ["a"]


def test_a_function_that_finishes_with_an_exception_frees_its_key(kind: Kind) -> None:
    charging = Charging(kind, on_cancel="finish")

    @idempotent(kind.checker, group="tests", key="order", name="charge", on_cancel="finish")
    async def fail(order: str) -> str:
        charging.entered.set()
        await asyncio.sleep(0.05)
        raise ValueError(order)

    async def run() -> None:
        assert await by_task(lambda: fail("a"), charging.entered) == "cancelled"
        assert await charging.call() == "a"

    asyncio.run(run())


def test_a_block_that_is_cancelled_parks_its_key(kind: Kind, way: Any) -> None:
    if not kind.is_async:
        pytest.skip("no task cancels a plain function")
    entered = asyncio.Event()

    async def block() -> None:
        async with once(kind.checker, "m", group="tests", on_cancel="park"):
            entered.set()
            await asyncio.sleep(30)

    async def run() -> None:
        assert await way(block, entered) == "cancelled"
        with pytest.raises(DeadKeyError, match="effect unknown"):
            await block()

    asyncio.run(run())


@pytest.mark.parametrize("number", [1, 2])
def test_the_message_of_a_consumer_that_is_interrupted_is_parked_and_no_other(number: int) -> None:
    registry = Registry()

    @registry.consumer("orders", group="tests", checker=MemoryChecker(), on_cancel="park")
    def handle(message: Message) -> None:
        if message.id == "bad":
            raise KeyboardInterrupt

    messages = [Message("orders", id=each) for each in ("bad", "good")[:number]]
    with pytest.raises(KeyboardInterrupt):
        handle.process_many(messages) if number > 1 else handle.process(messages[0])
    assert [handle.process(each).outcome.value for each in messages] == ["dead", "processed"][:number]


def test_a_batch_cannot_park() -> None:
    with pytest.raises(ConfigurationError, match="on_cancel='park' cannot go with batch=True"):

        @Registry().consumer("orders", group="tests", checker=MemoryChecker(), batch=True, on_cancel="park")
        def _handle(messages: list[Message]) -> None: ...


def test_a_block_that_is_closed_with_its_generator_frees_its_key(kind: Kind) -> None:
    async def later() -> Any:
        async with once(kind.checker, "m", group="tests"):
            yield 1

    def now() -> Any:
        with once(kind.checker, "m", group="tests"):
            yield 1

    async def run() -> None:
        begun = later()
        assert await anext(begun) == 1
        await begun.aclose()
        while True:  # the key is freed beside the loop
            try:
                async with once(kind.checker, "m", group="tests"):
                    return
            except InProgressError:
                await asyncio.sleep(0.05)

    if kind.is_async:
        asyncio.run(asyncio.wait_for(run(), 30))
        return
    begun = now()
    assert next(begun) == 1
    begun.close()
    with once(kind.checker, "m", group="tests"):
        pass


def test_a_cancellation_that_comes_with_the_claim_of_a_block_frees_its_key(kind: Kind) -> None:
    """A driver may swallow it in the middle of an answer."""
    if not kind.is_async:
        pytest.skip("no task cancels a plain function")
    task: asyncio.Task[None]

    async def claims(request: Any) -> Any:
        decision = await real(request)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1)
        return decision

    async def enter() -> None:
        async with once(kind.checker, "m", group="tests"):
            pytest.fail("it ran")

    async def run() -> None:
        nonlocal task, real
        awaiting = kind.checker.awaiting
        real = awaiting.claim
        awaiting.claim = claims  # type: ignore[method-assign]
        task = asyncio.ensure_future(enter())
        with pytest.raises(asyncio.CancelledError):
            await task
        awaiting.claim = real  # type: ignore[method-assign]
        async with once(kind.checker, "m", group="tests", wait_s=30):
            pass

    real: Any = None
    asyncio.run(run())


def test_a_cancellation_while_a_block_gets_its_session_frees_its_key(kind: Kind) -> None:
    if not (kind.is_async and kind.is_transactional):
        pytest.skip("no task waits for a session")

    class Cancels(Observer):
        def around(self, *_: object) -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    def consumer(*observers: Observer) -> Any:
        @Registry(observers).consumer("orders", group="tests", checker=kind.checker)
        async def handle(_: Message, session: AsyncSession) -> None:
            del session

        return handle

    async def enter() -> None:
        cancelled, message = consumer(Cancels()), Message("orders", id="m")
        async with Once(lambda *, is_async: cancelled, message, 0.0):
            await asyncio.sleep(0)
            pytest.fail("it ran on")

    async def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.ensure_future(enter())
        result = await consumer().process(Message("orders", id="m"))
        assert result.outcome is Outcome.PROCESSED

    asyncio.run(run())


class Slow(SqlChecker):
    """Records a completion slowly, and fails if it is told to."""

    def __init__(self, url: str, *, fails: bool) -> None:
        super().__init__(url, combine=False)
        self.entered = threading.Event()
        self.fails = fails

    def _complete(self, completion: Completion) -> bool:
        self.entered.set()
        time.sleep(0.3)
        if self.fails:
            raise StoreUnavailableError("no answer")
        return super()._complete(completion)


@pytest.mark.parametrize("fails", [False, True], ids=["the block does not begin", "its end is not recorded"])
def test_a_cancellation_is_raised_before_the_error_of_a_block(tmp_path: Path, *, fails: bool) -> None:
    """Else the task goes on, because its program expects such an error and handles it."""
    url = f"sqlite:///{tmp_path}/keys.db"
    upgrade(url)
    checker = Slow(url, fails=fails)
    if not fails:
        # Of a process that died, whose effect happened: the key is completed, and the block is a duplicate.
        dead = SqlChecker(url, lease_s=0.01)
        claim = dead.protocol.claim(ClaimRequest(KeySpace("once", "tests").key("m"), new_owner())).claim
        assert claim is not None
        dead.protocol.abandon(claim)
        time.sleep(0.1)
        dead.close()

    async def enter() -> None:
        with suppress(DuplicateError, StoreUnavailableError):
            async with once(checker, "m", group="tests", on_expired_lease=lambda _: True):
                assert fails
        await asyncio.sleep(0)
        pytest.fail("it ran on")

    async def run() -> None:
        task = asyncio.ensure_future(enter())
        await asyncio.to_thread(checker.entered.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    checker.close()


def test_a_block_cannot_finish() -> None:
    with pytest.raises(ConfigurationError, match=r"on_cancel='finish' cannot go with once"):
        once(MemoryChecker(), "m", group="tests", on_cancel="finish")  # type: ignore[arg-type]


@pytest.mark.parametrize("on_expired_lease", ["retry", "park"])
def test_the_end_of_its_loop_is_the_death_of_what_is_to_finish(kind: Kind, on_expired_lease: str) -> None:
    if not kind.is_async or kind.is_transactional:
        pytest.skip("no task cancels a plain function, and a transaction is rolled back")
    ran = []
    began = asyncio.Event()

    @idempotent(
        kind.checker,
        group="tests",
        key="order",
        name="mail",
        on_cancel="finish",
        on_expired_lease=on_expired_lease,  # type: ignore[arg-type]
    )
    async def mail(order: str) -> str:
        ran.append(order)
        began.set()
        await asyncio.sleep(3600 if len(ran) == 1 else 0)
        return order

    async def leaves() -> None:
        task = asyncio.ensure_future(mail("a"))
        await began.wait()
        del task  # asyncio.run cancels it, and what it waits for

    asyncio.run(leaves())
    if on_expired_lease == "park":
        with pytest.raises(DeadKeyError):
            asyncio.run(mail("a"))
        assert ran == ["a"]
    else:
        assert asyncio.run(mail("a")) == "a"
        assert ran == ["a", "a"]
