"""Life: the steps of a message's life, as a generator, and what carries them out.

The rules of a message's life are written once, as generators: each yields the step that comes next, and gets its answer
or its exception back. `drive` carries out the steps in a thread, `drive_async` in a task, for an `async def` handler;
a `ParkedLife` in a thread of a worker, which it leaves while it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final, Generic, TypeAlias, TypeVar

from idempotent.checkers.awaiting import Awaiting
from idempotent.checkers.combining.combiner import Combiner, at_once, combines
from idempotent.checkers.combining.waiters import ParkedWaiter, Threads
from idempotent.checkers.side_calls import raise_first
from idempotent.claims import Completion, Decision

R = TypeVar("R")
T = TypeVar("T")

Step: TypeAlias = tuple[int, Callable[..., Any], tuple[Any, ...]]
"""The kind of a step, a function, and its arguments. A tuple of integers and functions: each message makes several."""
Life: TypeAlias = Generator[Step, Any, R]
"""Yields steps, and returns what became of the message."""

CLAIM: Final = 0
"""Claims the key of one message alone: `claim(request)`."""
COMPLETE: Final = 1
"""Completes one claim: `complete(claim, result)`."""
STORE: Final = 2
"""Any other call that may ask the store."""
RUN: Final = 3
"""Runs the handler."""
SLEEP: Final = 4
"""Waits: `sleep(seconds)`."""
CLAIM_MANY: Final = 5
"""Claims the keys of a group: `claim_many(requests)`."""
frame_of: Final = attrgetter("gi_frame")
"""The frame of a life; None: it has ended."""
# The garbage collector must close the coroutine of a task that was dropped, and not first the life in it.
_under_way: Final[set[Life[Any]]] = set()
ENDED: Final = -1
"""Beside the kinds of steps: the life has ended."""


class Closed(BaseException):
    """Stands for a GeneratorExit in a life: `yield from` hands that on as `close()`, after which no step may follow."""


def drive(life: Life[R], raised: BaseException | None = None) -> R:
    """Carry out all steps in the calling thread. Returns what the life returns; its exceptions pass through.

    Args:
        life: the steps.
        raised: what the step that the life waits for has raised; None: the life has not begun.
    """
    send = life.send
    resume: Callable[[Any], Step] = send if raised is None else life.throw
    given: Any = raised
    try:
        while True:
            # An exception of a step, and an interrupt between two steps, are handed to the life. What comes out of a
            # life that has ended is its own.
            try:
                _, function, arguments = resume(given)
                given = function(*arguments)
                resume = send
            except StopIteration as stop:
                if frame_of(life) is None:
                    return stop.value  # type: ignore[no-any-return]
                resume, given = life.throw, stop
            except BaseException as error:
                if frame_of(life) is None:
                    if isinstance(error, Closed):
                        raise GeneratorExit from error
                    raise
                resume, given = life.throw, Closed() if isinstance(error, GeneratorExit) else error
    finally:
        # The exception's traceback holds this frame: without this they would keep each other alive.
        given = raised = None


async def drive_async(life: Life[R], awaiting: Awaiting, report: Callable[[R], object]) -> R:
    """Carry out all steps in the running task, as `drive` does in a thread.

    A cancellation interrupts a claim, a handler and a wait. A step that completes or frees a claim goes on to its end;
    the cancellation then reaches the life at its next step that can be interrupted.

    Args:
        life: the steps.
        awaiting: the checker's.
        report: is given what the life returns.

    Raises:
        CancelledError: the task was cancelled, and no claim is left; or too late to prevent what was reported.
    """
    came: list[asyncio.CancelledError] = []
    resume: Callable[[Any], Step] = life.send
    given: Any = None
    try:
        _under_way.add(life)
        while True:
            try:
                kind, function, arguments = resume(given)
                if kind == COMPLETE:
                    given = await awaiting.complete(*arguments, on_cancel=came.append)
                elif kind == STORE:
                    given = await awaiting.call(function, *arguments, on_cancel=came.append)
                elif came:
                    raise came[0]  # noqa: TRY301 - handed to the life, as if it came now
                elif kind == CLAIM:
                    given = await _claimed(awaiting.claim, arguments[0], came)
                elif kind == RUN:
                    given = await function(*arguments)
                else:
                    given = await _seldom(kind, arguments, awaiting, came)
                resume = life.send
            except StopIteration as stop:
                if frame_of(life) is None:
                    result: R = stop.value
                    break
                resume, given = life.throw, stop
            except GeneratorExit:
                awaiting.later(_close, life)
                raise
            except BaseException as error:
                if frame_of(life) is None:
                    raise
                resume, given = life.throw, error
        report(result)
        raise_first(came)
        return result
    finally:
        _under_way.discard(life)
        # The exception's traceback holds this frame: without this they would keep each other alive.
        given = None
        came.clear()


async def _claimed(claim: Callable[[T], Awaitable[R]], asked: T, came: list[asyncio.CancelledError]) -> R:
    """Claim. A cancellation that the driver swallows, as asyncmy does in the middle of an answer, has come as well."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    answer = await claim(asked)
    if task.cancelling() > before:
        try:
            for _ in range(2):
                await asyncio.sleep(0)  # anyio repeats it in the next turn of the loop
            raise asyncio.CancelledError  # noqa: TRY301 - asyncio does not
        except asyncio.CancelledError as error:
            came.append(error)
    return answer


async def _seldom(
    kind: int, arguments: tuple[Any, ...], awaiting: Awaiting, came: list[asyncio.CancelledError]
) -> list[Decision] | None:
    """Carry out a step that not every message has."""
    if kind == CLAIM_MANY:
        return await _claimed(awaiting.claim_many, arguments[0], came)
    return await asyncio.sleep(arguments[0], None)


def _close(life: Life[Any]) -> None:
    """End a life whose task is closed instead of run to its end: nothing can be awaited any more."""
    with suppress(GeneratorExit):
        drive(life, Closed())


class ParkedLife(Generic[R]):
    """Carries out steps in the calling thread, as `drive` does, up to a claim or a completion that has to wait.

    Then it is parked: when a round has answered, one of some threads goes on with it.

    Args:
        life: the steps of one message.
        combiner: makes its claims and completions.
        threads: hear of each answer.
        parked: what they call it.

    Attributes:
        result: what the life has returned; set when it has ended.
        waiter: the call that it waits for, if it is parked.
    """

    __slots__ = ("_arguments", "_combiner", "_life", "_parked", "_threads", "result", "waiter")

    def __init__(self, life: Life[R], combiner: Combiner, threads: Threads, parked: object) -> None:
        self._life = life
        self._combiner = combiner
        self._threads = threads
        self._parked = parked
        self._arguments: tuple[Any, ...] = ()
        self.waiter: ParkedWaiter | None = None
        self.result: R

    def go_on(self) -> int:
        """Carry out steps until the life has ended or is parked; its exceptions pass through.

        Returns ENDED, or the kind of the step for which it is parked: others may go on with it already.
        """
        life, threads, combiner = self._life, self._threads, self._combiner
        answered, self.waiter = self.waiter, None
        parked: ParkedWaiter | None = None
        kind = ENDED
        send = life.send
        resume: Callable[[Any], Step] = send
        given: Any = None
        try:
            while True:
                # As in `drive`.
                try:
                    if answered is not None:
                        waiter, answered = answered, None
                        given = self._answer(waiter)
                    kind, function, arguments = resume(given)
                    if kind <= COMPLETE and not threads.is_alone:
                        parked = self._parked_for(kind, arguments)
                        if parked is not None:
                            self._arguments, self.waiter = arguments, parked
                            combiner.put(parked)
                            return kind
                    given = function(*arguments)
                    resume = send
                except StopIteration as stop:
                    if frame_of(life) is None:
                        self.result = stop.value
                        return ENDED
                    resume, given = life.throw, stop
                except BaseException as error:
                    if parked is not None and combiner.has(parked):
                        return kind  # another thread's exception came too late: others go on with the life
                    if frame_of(life) is None:
                        if isinstance(error, Closed):
                            raise GeneratorExit from error
                        raise
                    resume, given = life.throw, Closed() if isinstance(error, GeneratorExit) else error
                    parked = self.waiter = None
        finally:
            # The exception's traceback holds this frame: without this they would keep each other alive.
            given = None

    def look(self) -> None:
        """See to it that its round begins, if it is parked and has waited for long."""
        waiter = self.waiter
        if waiter is not None:
            self._combiner.look(waiter)

    def _parked_for(self, kind: int, arguments: tuple[Any, ...]) -> ParkedWaiter | None:
        """The call to wait for; None: it is no part of a round."""
        if kind == CLAIM:
            request = arguments[0]
            return ParkedWaiter(at_once(request), self._threads, self._parked) if combines(request) else None
        if arguments[0].empty:
            return None
        return ParkedWaiter(Completion(*arguments), self._threads, self._parked)

    def _answer(self, waiter: ParkedWaiter) -> Any:
        if isinstance(waiter.call, Completion):
            return self._combiner.completed(waiter, *self._arguments)
        return self._combiner.claimed(waiter, *self._arguments)
