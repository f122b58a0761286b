"""What an `async def` handler may rely on: its claim, its context, its timeout and its results."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from idempotent import Outcome, current_claim
from idempotent.checkers import MemoryChecker
from idempotent.errors import HandlerTimeoutError
from idempotent.observe import Observer
from tests.processing.tasks import async_consumer, attempts_of, message

user: ContextVar[str] = ContextVar("user")


def test_a_message_runs_once_and_its_exception_is_raised_by_the_call(run, checker):
    async def main():
        async def handle(given):
            await asyncio.sleep(0)
            if given.id == "bad":
                raise ValueError("bad")
            return given.id

        consumer = async_consumer(handle, checker)
        assert [(await consumer(message())).outcome.value for _ in range(2)] == ["processed", "duplicate"]
        with pytest.raises(ValueError, match="bad"):
            await consumer(message("bad"))
        assert await attempts_of(checker, "bad") == 2

    run(main)


def test_a_handler_that_takes_too_long_has_failed(run, checker):
    async def main():
        async def handle(_):
            await asyncio.sleep(30)

        consumer = async_consumer(handle, checker, handler_timeout_s=0.05, max_attempts=2)
        first, second = await consumer.process(message()), await consumer.process(message())
        assert (first.outcome, type(first.error), first.attempt) == (Outcome.FAILED, HandlerTimeoutError, 1)
        assert "handler_timeout_s=0.05" in str(first.error)
        assert (second.outcome, second.attempt) == (Outcome.DEAD, 2)
        batch = async_consumer(handle, checker, group="batch", batch=True, handler_timeout_s=0.05)
        results = await batch.process_many([message("2"), message("3")])
        assert [type(result.error) for result in results] == [HandlerTimeoutError] * 2

    run(main)


def test_a_timeout_of_the_handlers_own_keeps_its_words(run, checker):
    async def main():
        async def handle(_):
            raise TimeoutError("the bank does not answer")

        result = await async_consumer(handle, checker, handler_timeout_s=30).process(message())
        assert str(result.error) == "the bank does not answer"

    run(main)


def test_a_cancellation_at_the_timeout_is_a_cancellation(run, checker):
    async def main():
        async def handle(_):
            try:
                await asyncio.sleep(30)
            finally:
                task.cancel()

        task = asyncio.create_task(async_consumer(handle, checker, handler_timeout_s=0.05).process(message()))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await attempts_of(checker) == 1

    run(main)


def test_each_of_many_handlers_at_once_has_its_own_claim_also_in_its_child_tasks(run, checker):
    async def main():
        async def key_of_child():
            await asyncio.sleep(0)
            return str(current_claim().key)

        async def handle(_):
            await asyncio.sleep(0.01)
            async with asyncio.TaskGroup() as tasks:
                child = tasks.create_task(key_of_child())
            in_thread = await asyncio.to_thread(lambda: str(current_claim().key))
            return {str(current_claim().key), child.result(), in_thread}

        consumer = async_consumer(handle, checker)
        results = await asyncio.gather(*(consumer.process(message(str(n))) for n in range(20)))
        assert [result.value for result in results] == [{f"orders:default:{n}"} for n in range(20)]
        with pytest.raises(LookupError):
            current_claim()

    run(main)


def test_a_handler_runs_in_the_context_of_its_caller(run, checker):
    async def main():
        async def handle(_):
            before = user.get()
            user.set("set by the handler")
            return before

        user.set("set by the caller")
        assert (await async_consumer(handle, checker).process(message())).value == "set by the caller"
        assert user.get() == "set by the handler"

    run(main)


def test_the_exceptions_of_a_task_group_in_a_handler_are_those_of_the_handler(run, checker):
    async def main():
        async def fail():
            raise KeyError("gone")

        async def handle(_):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fail())

        ignoring = async_consumer(handle, checker, idempotent_for=KeyError)
        assert (await ignoring.process(message())).outcome is Outcome.IGNORED
        retrying = async_consumer(handle, checker, group="retrying")
        assert (await retrying.process(message())).outcome is Outcome.FAILED

    run(main)


def test_a_failure_after_a_task_group_that_the_handler_survived_is_a_failure(run, checker):
    """Before Python 3.13 the group leaves its task with a cancellation that no caller asked for."""

    async def main():
        async def fail():
            raise KeyError("gone")

        async def handle(_):
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(fail())
            except* KeyError:
                pass
            raise ValueError("and then")

        results = [await async_consumer(handle, checker).process(message()) for _ in range(2)]
        assert [(type(each.error), each.attempt) for each in results] == [(ValueError, 1), (ValueError, 2)]

    run(main)


def test_duplicates_get_the_stored_result(run, checker):
    async def main():
        async def handle(_):
            return {"cents": 5}

        consumer = async_consumer(handle, checker, store_result=True)
        results = [await consumer.process(message()) for _ in range(2)]
        assert [(each.outcome.value, each.value) for each in results] == [
            ("processed", {"cents": 5}),
            ("duplicate", {"cents": 5}),
        ]

    run(main)


def test_a_handler_may_process_the_messages_of_another_consumer(run, checker):
    async def main():
        async def inner(_):
            return str(current_claim().key)

        consumer = async_consumer(inner, checker, group="inner")

        async def outer(given):
            return (await consumer.process(given)).value, str(current_claim().key)

        result = await async_consumer(outer, checker, group="outer").process(message())
        assert result.value == ("orders:inner:1", "orders:outer:1")

    run(main)


async def async_answer(_):
    await asyncio.sleep(0)
    return threading.get_ident()


def plain_answer(_):
    return threading.get_ident()


@pytest.mark.parametrize(("ask", "in_the_loop"), [(async_answer, True), (plain_answer, False)])
def test_the_question_about_a_lapsed_lease_blocks_no_loop(run, ask, in_the_loop):
    threads = []

    async def main():
        now = [1e9]
        checker = MemoryChecker(lease_s=1, clock=lambda: now[0])

        def asked(key):
            threads.append(threading.get_ident())
            return True

        async def asked_async(key):
            await asyncio.sleep(0)
            return asked(key)

        async def handle(_):
            raise AssertionError

        consumer = async_consumer(
            handle, checker, on_expired_lease=asked_async if ask is async_answer else asked
        )
        checker._claim(consumer.binding.requests.of(message()))
        now[0] += 2
        assert (await consumer.process(message())).outcome is Outcome.DUPLICATE

    run(main)
    assert (threads == [threading.get_ident()]) is in_the_loop


def test_observers_see_the_run_of_a_cancelled_handler(run, checker):
    class Runs(Observer):
        errors: list[object]

        def ran(self, consumer, messages, seconds, error):
            self.errors.append(type(error))

    async def main():
        runs = Runs()
        runs.errors = []
        entered = asyncio.Event()

        async def handle(_):
            entered.set()
            await asyncio.sleep(30)

        task = asyncio.create_task(async_consumer(handle, checker, observers=[runs]).process(message()))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert runs.errors == [asyncio.CancelledError]

    run(main)


def test_the_end_of_a_handlers_time_is_retried_whatever_is_retried_besides(run, checker):
    async def hang(_):
        await asyncio.sleep(60)

    async def main():
        consumer = async_consumer(hang, checker, retry_for=ConnectionError, handler_timeout_s=0.05)
        result = await consumer.process(message())
        assert (result.outcome, result.attempt) == (Outcome.FAILED, 1)
        assert isinstance(result.error, TimeoutError)

    run(main)
