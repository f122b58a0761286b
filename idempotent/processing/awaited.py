"""drive_async: carries out the steps of the life of a message whose handler is an `async def`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from idempotent.checkers.awaiting import Awaiting
from idempotent.claims import Decision
from idempotent.processing.steps import (
    CLAIM,
    CLAIM_MANY,
    COMPLETE,
    RUN,
    STORE,
    Closed,
    Life,
    Step,
    drive,
    frame_of,
)

R = TypeVar("R")

# The garbage collector must close the coroutine of a task that was dropped, and not first the life in it.
_under_way: Final[set[Life[Any]]] = set()


async def drive_async(life: Life[R], awaiting: Awaiting) -> tuple[R, bool]:
    """Carry out all steps in the running task, as `drive` does in a thread.

    A cancellation interrupts a claim, a handler and a wait. A step that completes or frees a claim goes on to its end;
    the cancellation then reaches the life at its next step that can be interrupted. A cancellation that a handler has
    survived was its own; before Python 3.13 a TaskGroup in it may leave one.

    Returns what the life returns, and whether the task was cancelled too late to prevent it.

    Raises:
        CancelledError: the task was cancelled, and no claim is left.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    resume: Callable[[Any], Step] = life.send
    given: Any = None
    _under_way.add(life)
    try:
        while True:
            try:
                kind, function, arguments = resume(given)
                if kind == COMPLETE:
                    given = await awaiting.complete(*arguments)
                elif kind == STORE:
                    given = await awaiting.call(function, *arguments)
                elif task.cancelling() > before:
                    raise asyncio.CancelledError  # noqa: TRY301 - handed to the life, like one from outside
                elif kind == CLAIM:
                    given = await awaiting.claim(*arguments)
                elif kind == RUN:
                    try:
                        given = await function(*arguments)
                    finally:
                        before = task.cancelling()
                else:
                    given = await _seldom(kind, arguments, awaiting)
                resume = life.send
            except StopIteration as stop:
                if frame_of(life) is None:
                    return stop.value, task.cancelling() > before
                resume, given = life.throw, stop
            except GeneratorExit:
                awaiting.later(_close, life)
                raise
            except BaseException as error:
                if frame_of(life) is None:
                    raise
                resume, given = life.throw, error
    finally:
        _under_way.discard(life)
        # The exception's traceback holds this frame: without this they would keep each other alive.
        given = None


async def _seldom(kind: int, arguments: tuple[Any, ...], awaiting: Awaiting) -> list[Decision] | None:
    """Carry out a step that not every message has."""
    if kind == CLAIM_MANY:
        return await awaiting.claim_many(*arguments)
    return await asyncio.sleep(arguments[0], None)


def _close(life: Life[Any]) -> None:
    """End a life whose task is closed instead of run to its end: nothing can be awaited any more."""
    with suppress(GeneratorExit):
        drive(life, Closed())
