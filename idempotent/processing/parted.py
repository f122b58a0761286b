"""PartedLife: the life of a message that keeps no thread while it waits for a round of its checker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from idempotent.checkers.combining.combiner import Combiner, at_once, combines
from idempotent.checkers.combining.waiters import ParkedWaiter, Threads
from idempotent.claims import Completion
from idempotent.message import Message
from idempotent.outcomes import Result
from idempotent.processing.binding import Binding
from idempotent.processing.single import process_one
from idempotent.processing.steps import CLAIM, COMPLETE, Closed, Life, Step, frame_of

R = TypeVar("R")

ENDED: Final = -1
"""Beside the kinds of steps: the life has ended."""


def parted(binding: Binding, message: Message, threads: Threads, parked: object) -> PartedLife[Result] | None:
    """The life of one message in these threads, which call it `parked`; None: its checker has no rounds."""
    if binding.combiner is None:
        return None
    return PartedLife(process_one(binding, message), binding.combiner, threads, parked)


class PartedLife(Generic[R]):
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
