"""A cancelled task leaves a message as if it had not been claimed, or with its effect recorded."""

from __future__ import annotations

import asyncio
import threading

import pytest

from idempotent import Outcome, Registry
from idempotent.checkers import MemoryChecker
from idempotent.errors import HandlerCancelledError
from tests.processing.tasks import (
    LONGEST_S,
    Counted,
    DeafChecker,
    Entered,
    async_consumer,
    attempts_of,
    later_attempts_of,
    message,
    returns,
)


async def cancelled(task, *, times=1):
    """Cancel a task, and see that it ends so."""
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task


def test_one_that_is_cancelled_before_it_began_claims_nothing(run, checker):
    async def main():
        entered = Entered()
        await cancelled(asyncio.create_task(async_consumer(entered, checker).process(message())))
        assert not entered.names
        assert await attempts_of(checker) == 1

    run(main)


def test_one_that_is_cancelled_in_its_handler_counts_no_attempt(run, checker, begin):
    async def main():
        entered, counted = Entered(), Counted()
        consumer = async_consumer(entered, checker, observers=[counted])
        task = begin(consumer.process(message()))
        await entered.now.wait()
        await cancelled(task)
        assert not counted.outcomes
        assert await attempts_of(checker) == 1

    run(main)


def test_one_that_is_cancelled_before_its_claim_is_answered_leaves_no_claim(run, blocking, begin):
    async def main():
        entered = Entered()
        blocking.waits_at = "_claim"
        task = begin(async_consumer(entered, blocking).process(message()))
        await blocking.is_reached()
        await cancelled(task)
        blocking.waits_at = None
        blocking.go.set()
        assert not entered.names
        # The answer comes after the task has ended, and so does the release.
        assert await later_attempts_of(blocking) == 1

    run(main)


def test_one_whose_driver_swallows_the_cancellation_of_its_claim_runs_no_handler(run, begin):
    async def main():
        entered, checker = Entered(), DeafChecker()
        task = begin(async_consumer(entered, checker).process(message()))
        await checker.reached.wait()
        await cancelled(task)
        assert not entered.names
        assert checker.entries == {}

    run(main)


def test_one_that_is_cancelled_while_its_effect_is_recorded_has_processed_the_message(run, blocking, begin):
    async def main():
        counted = Counted()
        consumer = async_consumer(returns, blocking, observers=[counted])
        blocking.waits_at = "_complete"
        task = begin(consumer.process(message()))
        await blocking.is_reached()
        task.cancel()
        await asyncio.sleep(0.05)
        assert not task.done()
        blocking.go.set()
        await cancelled(task, times=0)
        assert counted.outcomes == ["processed"]
        assert (await consumer.process(message())).outcome is Outcome.DUPLICATE

    run(main)


def test_a_second_cancellation_does_not_interrupt_the_release(run, blocking, begin):
    async def main():
        entered = Entered()
        blocking.waits_at = "_release"
        task = begin(async_consumer(entered, blocking).process(message()))
        await entered.now.wait()
        task.cancel()
        await blocking.is_reached()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done()
        blocking.go.set()
        await cancelled(task, times=0)
        assert await attempts_of(blocking) == 1

    run(main)


def test_a_handler_that_swallows_its_cancellation_has_processed_the_message(run, checker):
    async def main():
        entered = asyncio.Event()

        async def handle(_):
            entered.set()
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                return "done anyway"

        consumer = async_consumer(handle, checker)
        task = asyncio.create_task(consumer.process(message()))
        await entered.wait()
        task.cancel()
        assert ((await task).outcome, (await task).value) == (Outcome.PROCESSED, "done anyway")
        assert (await consumer.process(message())).outcome is Outcome.DUPLICATE

    run(main)


def test_what_a_handler_raises_because_it_is_cancelled_is_no_attempt(run, checker, begin):
    def clean_up():
        raise OSError("the connection is gone")

    async def main():
        entered = Entered(on_cancel=clean_up)
        task = begin(async_consumer(entered, checker).process(message()))
        await entered.now.wait()
        await cancelled(task)
        assert await attempts_of(checker) == 1

    run(main)


def test_a_cancelled_child_task_is_a_failure_of_the_handler(run, checker):
    async def main():
        async def handle(_):
            child = asyncio.create_task(asyncio.sleep(30))
            asyncio.get_running_loop().call_soon(child.cancel)
            await child

        result = await async_consumer(handle, checker).process(message())
        assert (result.outcome, type(result.error), result.attempt) == (
            Outcome.FAILED,
            HandlerCancelledError,
            1,
        )
        assert await attempts_of(checker) == 2

    run(main)


def test_a_failing_sibling_of_a_task_group_costs_no_attempt(run, checker):
    async def main():
        entered = Entered()

        async def fail():
            await entered.now.wait()
            raise KeyError("sibling")

        async def both():
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(async_consumer(entered, checker).process(message()))
                tasks.create_task(fail())

        with pytest.raises(ExceptionGroup) as raised:
            await both()
        assert [type(error) for error in raised.value.exceptions] == [KeyError]
        assert await attempts_of(checker) == 1

    run(main)


def test_a_timeout_around_the_call_is_no_attempt(run, checker):
    async def expire(limit, entered):
        await entered.now.wait()
        limit.reschedule(asyncio.get_running_loop().time())

    async def call(entered):
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:
            tasks.create_task(expire(limit, entered))
            await async_consumer(entered, checker).process(message())

    async def main():
        entered = Entered()
        with pytest.raises(TimeoutError):
            await call(entered)
        assert entered.names == ["1"]
        assert await attempts_of(checker) == 1

    run(main)


def test_a_group_that_is_cancelled_in_a_handler_keeps_what_was_done(run, checker, begin):
    async def main():
        entered = Entered(waits_for="2")
        consumer = async_consumer(entered, checker)
        task = begin(consumer.process_many([message(name) for name in "123"]))
        await entered.now.wait()
        await cancelled(task)
        assert entered.names == ["1", "2"]
        assert (await consumer.process(message("1"))).outcome is Outcome.DUPLICATE
        assert [await attempts_of(checker, name) for name in "23"] == [1, 1]

    run(main)


def test_a_batch_that_is_cancelled_in_its_handler_is_free(run, checker, begin):
    async def main():
        entered = asyncio.Event()

        async def handle(_):
            entered.set()
            await asyncio.sleep(30)

        consumer = async_consumer(handle, checker, batch=True)
        task = begin(consumer.process_many([message(name) for name in "12"]))
        await entered.wait()
        await cancelled(task)
        assert [await attempts_of(checker, name) for name in "12"] == [1, 1]

    run(main)


def test_a_group_that_is_cancelled_while_it_is_claimed_runs_no_handler(run, blocking, begin):
    async def main():
        entered = Entered()
        blocking.waits_at = "_claim_many"
        task = begin(async_consumer(entered, blocking).process_many([message(n) for n in "12"]))
        await blocking.is_reached()
        task.cancel()
        await asyncio.sleep(0.05)
        blocking.go.set()
        await cancelled(task, times=0)
        assert not entered.names
        assert [await later_attempts_of(blocking, name) for name in "12"] == [1, 1]

    run(main)


def test_a_group_that_is_cancelled_while_it_is_recorded_has_processed_its_messages(run, blocking, begin):
    async def main():
        counted = Counted()
        consumer = async_consumer(returns, blocking, observers=[counted])
        blocking.waits_at = "_complete"
        task = begin(consumer.process_many([message(name) for name in "12"]))
        await blocking.is_reached()
        task.cancel()
        await asyncio.sleep(0.05)
        blocking.go.set()
        await cancelled(task, times=0)
        assert counted.outcomes == ["processed"] * 2
        results = await consumer.process_many([message(name) for name in "12"])
        assert {result.outcome for result in results} == {Outcome.DUPLICATE}

    run(main)


def test_a_group_that_is_cancelled_while_one_is_recorded_runs_no_other(run, blocking, begin, monkeypatch):
    monkeypatch.setattr("idempotent.processing.group_run._RECORD_EVERY_S", -1.0)

    async def main():
        ran = []

        async def handle(given):
            ran.append(given.id)

        consumer = async_consumer(handle, blocking)
        blocking.waits_at = "_complete"
        task = begin(consumer.process_many([message(name) for name in "12"]))
        await blocking.is_reached()
        task.cancel()
        await asyncio.sleep(0.05)
        blocking.go.set()
        await cancelled(task, times=0)
        assert ran == ["1"]
        outcomes = [(await consumer.process(message(name))).outcome for name in "12"]
        assert outcomes == [Outcome.DUPLICATE, Outcome.PROCESSED]

    run(main)


def test_a_plain_handler_in_a_thread_goes_on_when_the_task_that_waits_for_it_is_cancelled():
    entered, gate, ran = threading.Event(), threading.Event(), []

    @Registry().consumer("orders", checker=MemoryChecker())
    def handle(given):
        entered.set()
        gate.wait(LONGEST_S)
        ran.append(given.id)

    async def cancel_it():
        task = asyncio.ensure_future(asyncio.to_thread(handle.process, message()))
        await asyncio.to_thread(entered.wait, LONGEST_S)
        await cancelled(task)
        gate.set()

    asyncio.run(cancel_it())  # waits for the loop's threads
    assert ran == [message().id]
    assert handle.process(message()).outcome is Outcome.DUPLICATE
