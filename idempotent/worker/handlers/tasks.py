"""HandlerTasks: the tasks in which a worker's `async def` handlers run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Final, cast

from idempotent.consumer import AsyncConsumer
from idempotent.outcomes import Outcome, Result
from idempotent.worker.handlers.handler_queue import Done, HandlerQueue
from idempotent.worker.holds import InFlightDelivery

# As of a key in progress elsewhere: held for a moment, and requeued by a worker that stops. Nothing was processed.
_CANCELLED: Final = Result(Outcome.IN_PROGRESS)


@dataclass(frozen=True, slots=True)
class LoopPlace:
    """The event loop that runs tasks.

    Attributes:
        loop: runs already.
        thread: the identity of its thread.
        context: the context variables that each handler sees.
    """

    loop: asyncio.AbstractEventLoop
    thread: int
    context: Context


class HandlerTasks:
    """Run `async def` consumers on works, each batch in a task with a context of its own.

    Args:
        most: how many tasks run at once.
        batch_size: the most works in one `process_many`.
        hand_over: takes what is done, in the loop's thread: together what ended together.
    """

    def __init__(self, most: int, batch_size: int, hand_over: Callable[[Sequence[Done]], None]) -> None:
        """Run nothing yet."""
        self._most = most
        self._hand_over = hand_over
        self._lock = threading.Lock()
        self._turns = HandlerQueue(batch_size)
        # All below is changed by the loop's thread alone.
        self._running: dict[asyncio.Task[Done], Sequence[InFlightDelivery]] = {}
        self._ended: list[Done] = []
        self._place: LoopPlace | None = None
        self._paused = False

    def start(self, place: LoopPlace) -> None:
        """Run tasks there from now on."""
        self._place = place

    def submit(self, works: Sequence[InFlightDelivery]) -> None:
        """Queue works.

        Raises:
            RuntimeError: the application closed the loop.
        """
        with self._lock:
            self._turns.add(works)
        # Otherwise the next task that ends starts them.
        if len(self._running) < self._most:
            assert self._place is not None
            self._place.loop.call_soon_threadsafe(self._start_tasks)

    def pause(self) -> None:
        """Start no more works; `stop` will return them."""
        self._paused = True

    def stop(self) -> list[InFlightDelivery]:
        """Return the works that did not start; none of them will. The others will still be done."""
        with self._lock:
            return self._turns.clear()

    def cancel(self) -> None:
        """Cancel all tasks. Their works will be done, without having been processed."""
        if self._place is not None:
            with suppress(RuntimeError):  # the loop is closed, and its tasks have ended
                self._place.loop.call_soon_threadsafe(self._cancel_tasks)

    @property
    def running(self) -> list[InFlightDelivery]:
        """Works that tasks have at this moment."""
        return [work for works in list(self._running.values()) for work in works]

    @property
    def consumers_at_work(self) -> list[str]:
        """The consumer of the task that the loop carries out at this moment; otherwise those of all tasks."""
        assert self._place is not None
        task = asyncio.current_task(self._place.loop)
        current = None if task is None else self._running.get(task)
        running = [current] if current else list(self._running.values())
        return sorted({works[0].consumer.name for works in running})

    # All below runs in the loop's thread.

    def _start_tasks(self) -> None:
        place = self._place
        assert place is not None
        while len(self._running) < self._most and not self._paused:
            with self._lock:
                works = self._turns.take()
            if not works:
                return
            task = place.loop.create_task(_process(works), context=place.context.copy())
            self._running[task] = works
            # Not the end of the coroutine: a task that is cancelled before its first step never enters it.
            task.add_done_callback(self._end, context=place.context)

    def _end(self, task: asyncio.Task[Done]) -> None:
        works = self._running.pop(task)
        if task.cancelled():
            self._ended.append(Done(works, [_CANCELLED] * len(works)))
        elif (error := task.exception()) is not None:  # a GeneratorExit of the handler's own
            self._ended.append(Done(works, [], error))
        else:
            self._ended.append(task.result())
        if len(self._ended) == 1:
            # The callbacks of all tasks that end in this round of the loop come before it.
            assert self._place is not None
            self._place.loop.call_soon(self._hand_over_ended, context=self._place.context)

    def _hand_over_ended(self) -> None:
        ended, self._ended = self._ended, []
        with self._lock:
            for done in ended:
                self._turns.ended(done.works[0].consumer)
        self._start_tasks()
        self._hand_over(ended)

    def _cancel_tasks(self) -> None:
        for task in list(self._running):
            task.cancel()


async def _process(works: Sequence[InFlightDelivery]) -> Done:
    """Process works of one consumer. Only a cancellation passes through."""
    consumer = cast("AsyncConsumer", works[0].consumer)
    try:
        if len(works) == 1:
            return Done(works, [await consumer.process(works[0].delivery.message)])
        return Done(works, await consumer.process_many([work.delivery.message for work in works]))
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # out of a task, SystemExit would end the loop
        return Done(works, [], error)
