"""A coroutine that is closed instead of run to its end leaves no claim behind, although nothing can be awaited."""

from __future__ import annotations

import asyncio
import gc

import pytest

from idempotent import Outcome
from idempotent.processing.steps import _under_way
from tests.processing.tasks import Entered, async_consumer, later_attempts_of, message, returns


async def closed(running, task):
    """Close a coroutine, as at the end of a loop whose tasks were not awaited: nothing can be awaited any more."""
    running.close()
    task.cancel()
    with pytest.raises(RuntimeError, match="already awaited"):
        await task


def test_a_coroutine_that_is_closed_in_its_handler_leaves_a_free_key(run, checker):
    async def main():
        entered = Entered()
        running = async_consumer(entered, checker).process(message())
        task = asyncio.create_task(running)
        await entered.now.wait()
        await closed(running, task)
        assert await later_attempts_of(checker) == 1

    run(main)


def test_a_group_that_is_closed_in_a_handler_keeps_what_was_done(run, checker):
    async def main():
        entered = Entered(waits_for="2")
        consumer = async_consumer(entered, checker)
        running = consumer.process_many([message(name) for name in "123"])
        task = asyncio.create_task(running)
        await entered.now.wait()
        await closed(running, task)
        assert [await later_attempts_of(checker, name) for name in "23"] == [1, 1]
        assert (await consumer.process(message("1"))).outcome is Outcome.DUPLICATE

    run(main)


def test_a_group_that_is_closed_while_it_is_claimed_frees_its_keys(run, blocking):
    async def main():
        entered = Entered()
        blocking.waits_at = "_claim_many"
        running = async_consumer(entered, blocking).process_many([message(name) for name in "12"])
        task = asyncio.create_task(running)
        await blocking.is_reached()
        await closed(running, task)
        blocking.go.set()
        assert [await later_attempts_of(blocking, name) for name in "12"] == [1, 1]
        assert not entered.names

    run(main)


def test_a_coroutine_that_is_closed_while_its_effect_is_recorded_has_processed_the_message(run, blocking):
    async def main():
        consumer = async_consumer(returns, blocking)
        blocking.waits_at = "_complete"
        running = consumer.process(message())
        task = asyncio.create_task(running)
        await blocking.is_reached()
        await closed(running, task)
        blocking.go.set()
        results = [await consumer.process(message())]
        for _ in range(1_000):
            if results[-1].outcome is not Outcome.IN_PROGRESS:
                break
            await asyncio.sleep(0.01)
            results.append(await consumer.process(message()))
        assert results[-1].outcome is Outcome.DUPLICATE
        assert not blocking.protocol._keeper._held

    run(main)


def test_a_task_that_the_garbage_collector_destroys_leaves_a_free_key(checker):
    consumer = async_consumer(Entered(), checker)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # "Task was destroyed but it is pending!"
    task = loop.create_task(consumer.process(message()))
    loop.run_until_complete(asyncio.sleep(0.2))
    loop.close()
    del task, loop
    gc.collect()
    assert not _under_way
    assert asyncio.run(later_attempts_of(checker)) == 1
