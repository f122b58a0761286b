"""Life: the steps of a message's life, as a generator, and what carries them out.

The rules of a message's life are written once, as generators: each yields the step that comes next, and gets its answer
or its exception back. `drive` carries out the steps in a thread, `drive_async` in a task, for an `async def` handler.
A `SuspendableLife` leaves its thread while it waits for a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from operator import attrgetter
from time import perf_counter
from typing import Any, Final, Generic, TypeAlias, TypeVar, overload

from idempotent.checkers.awaiting import Awaiting
from idempotent.checkers.batching import Call, Combiner
from idempotent.checkers.batching.batcher import Wake
from idempotent.checkers.batching.combiner import claim_call, combines, completion_call
from idempotent.checkers.side_calls import ended, raise_first
from idempotent.claims import ClaimRequest
from idempotent.observe.events import Stage, Timed
from idempotent.observe.observers import Observers

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
FINISH: Final = 6
"""Runs the handler to its end, also if its task is cancelled."""
# Python 3.11 takes as long to look up an enum's member as to create a small object.
_HANDLER: Final = Stage.HANDLER
_LONE: Final = (Stage.CLAIM, Stage.COMPLETION)
frame_of: Final = attrgetter("gi_frame")
"""The frame of a life; None: it has ended."""
# The garbage collector must close the coroutine of a task that was dropped, and not first the life in it.
_under_way: Final[set[Life[Any]]] = set()


class Closed(BaseException):
    """Stands for a GeneratorExit in a life: `yield from` hands that on as `close()`, after which no step may follow."""


class Suspended(Enum):
    """Where a life has left its thread: others may go on with it already."""

    CLAIM = auto()
    COMPLETION = auto()


_SUSPENDED: Final = (Suspended.CLAIM, Suspended.COMPLETION)


@overload
def drive(life: Life[R], first: Callable[[], object] | None = None) -> R: ...
@overload
def drive(
    life: Life[R], first: Callable[[], object] | None, leaving: SuspendableLife[Any]
) -> R | Suspended: ...
def drive(
    life: Life[R], first: Callable[[], object] | None = None, leaving: SuspendableLife[R] | None = None
) -> R | Suspended:
    """Carry out all steps in the calling thread. Returns what the life returns; its exceptions pass through.

    Args:
        life: the steps.
        first: the step that the life waits for; None: the life has not begun.
        leaving: leaves the thread where its claim or completion waits for a batch.
    """
    send = life.send
    resume: Callable[[Any], Step] = send
    function: Callable[..., object] | None = first
    arguments: tuple[Any, ...] = ()
    given: Any = None
    call: Call | None = None
    try:
        while True:
            # An exception of a step, and an interrupt between two steps, are handed to the life. What comes out of a
            # life that has ended is its own.
            try:
                if function is not None:
                    given = function(*arguments)
                    resume = send
                kind, function, arguments = resume(given)
                if leaving is not None and kind <= COMPLETE:
                    call = leaving.call_of(kind, arguments)
                    if call is not None:
                        leaving.calls.put(call)
                        return _SUSPENDED[kind]
            except StopIteration as stop:
                if frame_of(life) is None:
                    return stop.value  # type: ignore[no-any-return]
                resume, given, function = life.throw, stop, None
            except BaseException as error:
                if call is not None and leaving is not None and leaving.calls.has(call):
                    return _SUSPENDED[
                        kind
                    ]  # another thread's exception came too late: others go on with the life
                if frame_of(life) is None:
                    if isinstance(error, Closed):
                        raise GeneratorExit from error
                    raise
                resume, function, call = life.throw, None, None
                given = Closed() if isinstance(error, GeneratorExit) else error
    finally:
        # The exception's traceback holds this frame: without this they would keep each other alive.
        given = None


def _unreported(_: object) -> None:
    """What the life reports itself."""


async def drive_async(life: Life[R], awaiting: Awaiting, report: Callable[[R], object] = _unreported) -> R:
    """Carry out all steps in the running task, as `drive` does in a thread.

    A cancellation interrupts a claim, a handler and a wait. A step that completes or frees a claim goes on to its end;
    the cancellation then reaches the life at its next step that can be interrupted.

    Args:
        life: the steps.
        awaiting: the checker's.
        report: is given what the life returns, before a cancellation is raised that came too late.

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
                    given = await _seldom((kind, function, arguments), awaiting, came)
                resume = life.send
            except StopIteration as stop:
                if frame_of(life) is None:
                    result: R = stop.value
                    break
                resume, given = life.throw, stop
            except GeneratorExit:
                awaiting.later(close, life)
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


def part_of(
    life: Life[R],
    *,
    before: Callable[..., object] | None = None,
    answer: tuple[Callable[[Any], Step], Any] | None = None,
) -> Life[R | Step]:
    """The steps of a life up to the one that the caller carries out, or those after it.

    Args:
        life: the life.
        before: the function of that step, which is returned; None: go on to the end.
        answer: the life's `send` or `throw`, and what came of that step; None: the life has not begun.
    """
    resume, given = answer or (life.send, None)
    while True:
        try:
            step = resume(given)
        except StopIteration as end:
            result: R = end.value
            return result
        if step[1] == before:
            return step
        try:
            given = yield step
            resume = life.send
        except BaseException as error:
            resume, given = life.throw, error


def timed(
    life: Life[R],
    name: str,
    stages: Mapping[Callable[..., Any], tuple[Stage, bool]],
    observers: Observers,
) -> Life[R]:
    """The steps of a life. At its end the observers are told how long some of them took: a handler also if it raised.

    Args:
        life: the life.
        name: the consumer's name.
        stages: by the function of a step, its stage, and whether its last argument is for many messages.
        observers: those who are told.
    """
    send = life.send
    resume: Callable[[Any], Step] = send
    given: Any = None
    ended: Step | None = None
    began = 0.0
    raised = False
    times: list[Timed] = []
    note = times.append
    try:
        while True:
            # As `drive`: an interrupt in here is handed to the life, unless that has ended.
            try:
                if ended is not None:
                    kind, function, arguments = ended
                    ended = None
                    if kind <= COMPLETE:
                        if not raised:
                            note((_LONE[kind], perf_counter() - began, 1))
                    elif function in stages:
                        stage, is_many = stages[function]
                        if not raised or stage is _HANDLER:
                            note((stage, perf_counter() - began, len(arguments[-1]) if is_many else 1))
                    raised = False
                step = resume(given)
                ended, began = step, perf_counter()
                given = yield step
                resume = send
            except StopIteration as stop:
                if frame_of(life) is None:
                    return stop.value  # type: ignore[no-any-return]
                resume, given, raised = life.throw, stop, True
            except BaseException as error:
                if frame_of(life) is None:
                    raise
                resume, given, raised = life.throw, error, True
    finally:
        # The exception's traceback holds this frame: without this they would keep each other alive.
        given = None
        observers.timed(name, times)


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


async def _seldom(step: Step, awaiting: Awaiting, came: list[asyncio.CancelledError]) -> Any:
    """Carry out a step that not every message has."""
    kind, function, arguments = step
    if kind == FINISH:
        return await ended(function(*arguments), came.append)
    if kind == CLAIM_MANY:
        return await _claimed(awaiting.claim_many, arguments[0], came)
    return await asyncio.sleep(arguments[0], None)


def close(life: Life[Any]) -> None:
    """End a life whose task is closed instead of run to its end: nothing can be awaited any more."""

    def closed() -> None:
        raise Closed

    with suppress(GeneratorExit):
        drive(life, closed)


class SuspendableLife(Generic[R]):
    """The life of one message that keeps no thread while it waits for a batch: then another goes on with it.

    Args:
        life: the steps of the message.
        combiner: makes its claims and completions.
        wake: told, with all calls of a batch, that they are answered.
        signal: names the life to `wake`.
        has_others: whether calls of others may go together with its own; else it makes them at once.

    Attributes:
        calls: those that wait for a batch.
    """

    __slots__ = ("_arguments", "_call", "_combiner", "_has_others", "_life", "_signal", "_wake", "calls")

    def __init__(
        self,
        life: Life[R],
        combiner: Combiner,
        wake: Wake,
        signal: object,
        has_others: Callable[[], bool],
    ) -> None:
        self.calls: Final = combiner.calls
        self._life: Final = life
        self._combiner: Final = combiner
        self._wake: Final = wake
        self._signal: Final = signal
        self._has_others: Final = has_others
        self._call: Call | None = None
        self._arguments: tuple[Any, ...] = ()

    def go_on(self) -> R | Suspended:
        """Carry out steps until the life has ended, or leaves the thread; its exceptions pass through."""
        first = None if self._call is None else partial(self._answer, self._call, self._arguments)
        self._call = None
        return drive(self._life, first, self)

    def call_of(self, kind: int, arguments: tuple[Any, ...]) -> Call | None:
        """What the life waits for from now on; None: the step is no part of a batch."""
        if not self._has_others():
            return None
        if kind == CLAIM:
            (request,) = arguments
            call = claim_call(request, self._wake, self._signal) if combines(request) else None
        else:
            claim, result = arguments if len(arguments) > 1 else (*arguments, None)
            call = None if claim.empty else completion_call(claim, result, self._wake, self._signal)
        self._call, self._arguments = call, arguments
        return call

    def _answer(self, call: Call, arguments: tuple[Any, ...]) -> object:
        is_claim = isinstance(call.argument, ClaimRequest)
        return (self._combiner.claimed if is_claim else self._combiner.completed)(call, *arguments)
