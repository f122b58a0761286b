"""Life: the steps of a message's life, as a generator. `drive` carries them out one after the other.

The rules of a message's life are written once, as generators: each yields the step that comes next, and gets its answer
or its exception back. `drive` carries out the steps of a plain handler; `idempotent.processing.awaited` those of an
`async def` handler.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar

R = TypeVar("R")

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


class Closed(BaseException):
    """Stands for a GeneratorExit in a life: `yield from` hands that on as `close()`, after which no step may follow."""


frame_of: Final = attrgetter("gi_frame")
"""The frame of a life; None: it has ended."""


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
