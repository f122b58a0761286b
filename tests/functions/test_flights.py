"""Calls with one key at the same time: one asks the store, the others wait for its result in memory."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
import sqlalchemy as sa

from idempotent import FingerprintMismatchError, InProgressError, Outcome, idempotent
from idempotent.checkers import MemoryChecker
from idempotent.observe import counters
from idempotent.observe.events import Event
from tests.functions.kinds import Kind

CALLERS = 30
DEADLINE_S = 60.0


def at_once(
    kind: Kind, function: Callable[..., Any], calls: list[tuple[Any, ...]], **options: Any
) -> list[Any]:
    """What calls of a function come to that are made at the same time: their values, or their exceptions."""
    protect = idempotent(
        kind.checker, group="tests", key="order", name="charge", wait_s=DEADLINE_S, **options
    )
    if kind.is_async:

        @protect
        async def charge(order: str, amount: int = 1) -> Any:
            return await asyncio.to_thread(function, order, amount)

        async def run() -> list[Any]:
            return await asyncio.gather(*(charge(*each) for each in calls), return_exceptions=True)

        return asyncio.run(run())

    call = protect(lambda order, amount=1: function(order, amount))
    answers: list[Any] = [None] * len(calls)

    def ask(place: int) -> None:
        try:
            answers[place] = call(*calls[place])
        except Exception as error:
            answers[place] = error

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return answers


def counted(before: Mapping[tuple[str, Outcome | Event], int]) -> dict[Outcome | Event, int]:
    """What was counted of the function since then."""
    more = {
        what: count - before.get((name, what), 0)
        for (name, what), count in counters.snapshot().items()
        if name == "charge:tests"
    }
    return {what: count for what, count in more.items() if count}


def test_copies_of_a_running_call_wait_for_its_result_without_the_store(kind: Kind) -> None:
    ran, taken = [], []
    started = threading.Event()

    def charge(order: str, _: int) -> list[str]:
        ran.append(order)
        started.wait(0.5)
        return [order]

    if kind.is_transactional:
        engine = kind.checker.store.engine  # type: ignore[attr-defined]
        sa.event.listen(getattr(engine, "sync_engine", engine), "checkout", lambda *_: taken.append(1))
    answers = at_once(kind, charge, [("a",)] * CALLERS)
    assert answers == [["a"]] * CALLERS
    assert ran == ["a"]
    assert len({id(each) for each in answers}) == CALLERS, "a caller may change its result"
    # Who comes when the result has been handed on looks in the store for itself.
    assert len(taken) < CALLERS / 2


def test_every_copy_is_counted_whether_it_has_asked_the_store_or_not(kind: Kind) -> None:
    def charge(order: str, _: int) -> str:
        threading.Event().wait(0.2)
        return order

    before = counters.snapshot()
    assert at_once(kind, charge, [("a",)] * CALLERS) == ["a"] * CALLERS
    assert counted(before) == {Outcome.PROCESSED: 1, Outcome.DUPLICATE: CALLERS - 1}


def test_a_copy_that_has_waited_in_vain_is_counted_as_in_progress() -> None:
    began, end = threading.Event(), threading.Event()

    @idempotent(MemoryChecker(), group="tests", key="order", name="charge")
    def charge(order: str) -> str:
        began.set()
        end.wait(DEADLINE_S)
        return order

    before = counters.snapshot()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(charge, "a")
        assert began.wait(DEADLINE_S)
        with pytest.raises(InProgressError):
            charge("a")
        end.set()
        assert first.result(DEADLINE_S) == "a"
    assert counted(before) == {Outcome.PROCESSED: 1, Outcome.IN_PROGRESS: 1}


def test_when_a_call_fails_one_of_its_copies_runs(kind: Kind) -> None:
    ran = []

    def charge(order: str, _: int) -> str:
        ran.append(order)
        threading.Event().wait(0.2)
        if len(ran) == 1:
            raise ConnectionError("the bank is away")
        return order

    answers = at_once(kind, charge, [("a",)] * 8)
    assert ran == ["a", "a"]
    assert sorted(map(str, answers)) == ["a"] * 7 + ["the bank is away"]


def test_a_copy_with_other_arguments_is_not_given_the_result(kind: Kind) -> None:
    def charge(order: str, amount: int) -> str:
        threading.Event().wait(0.2)
        return f"{order}: {amount}"

    fingerprint = lambda order, amount=1: str(amount)  # noqa: E731
    answers = at_once(kind, charge, [("a", 1), ("a", 2)] * 3, fingerprint=fingerprint)
    values = {each for each in answers if isinstance(each, str)}
    assert values in ({"a: 1"}, {"a: 2"})
    assert sum(isinstance(each, FingerprintMismatchError) for each in answers) == 3


def test_a_call_waits_for_another_process(kind: Kind) -> None:
    """Two declarations of one function share keys and no flights, as two processes do."""
    ran, began, end = [], threading.Event(), threading.Event()

    def charge(order: str) -> str:
        ran.append(order)
        began.set()
        assert end.wait(DEADLINE_S)
        return f"charged {order}"

    def declared() -> Callable[[str], Any]:
        protect = idempotent(kind.checker, group="tests", key="order", name="charge", wait_s=DEADLINE_S)
        if not kind.is_async:
            return protect(charge)

        @protect
        async def charge_later(order: str) -> str:
            return await asyncio.to_thread(charge, order)

        return lambda order: asyncio.run(charge_later(order))

    first, second = declared(), declared()
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(first, "a")
        assert began.wait(DEADLINE_S)
        other = threads.submit(second, "a")
        threading.Timer(0.5, end.set).start()
        assert [one.result(DEADLINE_S), other.result(DEADLINE_S)] == ["charged a"] * 2
    assert ran == ["a"]


@pytest.mark.parametrize("turns", range(9))
def test_a_call_that_waits_for_another_one_loses_no_cancellation(turns: int) -> None:
    """It comes in each turn of the loop while the other's result arrives."""
    go = asyncio.Event()

    @idempotent(MemoryChecker(), group="tests", key="order", name="charge", wait_s=DEADLINE_S)
    async def charge(order: str) -> str:
        await go.wait()
        return order

    async def waits() -> None:
        await charge("a")
        await asyncio.sleep(0)
        await asyncio.Event().wait()

    async def run() -> None:
        first = asyncio.ensure_future(charge("a"))
        await asyncio.sleep(0)
        task = asyncio.ensure_future(waits())
        for _ in range(3):
            await asyncio.sleep(0)
        go.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 5)
        assert await first == "a"

    asyncio.run(run())


class TimeLimitError(BaseException):
    """As Celery and dramatiq raise it, at any line."""


def test_a_call_that_is_interrupted_before_it_asks_the_store_holds_up_no_other() -> None:
    ran: list[int] = []
    lines = 0

    @idempotent(MemoryChecker(), group="tests", key="order", name="charge")
    def charge(order: int) -> int:
        ran.append(order)
        return order

    def at(number: int) -> Callable[..., Any]:
        left = number

        def line(_: FrameType, event: str, __: Any) -> Any:
            nonlocal left
            left -= event == "line"
            if not left:
                sys.settrace(None)
                raise TimeLimitError
            return line

        return lambda frame, *_: line if "idempotent/function.py" in frame.f_code.co_filename else None

    while not ran:
        lines += 1
        before = sys.gettrace()
        sys.settrace(at(lines))
        try:
            charge(lines)
        except TimeLimitError:
            if not ran:
                assert charge(lines) == lines
                ran.clear()
        finally:
            sys.settrace(before)
    assert lines > 10
