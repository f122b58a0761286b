"""HandlerTasks: the tasks in which a worker's `async def` handlers run. OwnLoop and LoopWatch: the loop around them."""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from itertools import takewhile
from types import FrameType
from typing import Final, cast

from idempotent.checkers.repeating import RepeatingThread
from idempotent.consumer import AnyConsumer, AsyncConsumer
from idempotent.logs import EventLog
from idempotent.outcomes import Outcome, Result
from idempotent.worker.handlers.handler_queue import Done, HandlerQueue
from idempotent.worker.holds import InFlightDelivery

log = EventLog(__name__)

# As of a key in progress elsewhere: held for a moment, and requeued by a worker that stops. Nothing was processed.
_CANCELLED: Final = Result(Outcome.IN_PROGRESS)
_WITHOUT_LEASES_S: Final = 10.0
_SHARE_OF_LEASE: Final = 1 / 3
_ASKED_PER_LIMIT: Final = 4
_REMIND_S: Final = 60.0
_PATHS: Final = sysconfig.get_paths()
_LIBRARIES: Final = tuple({_PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


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
            self._place.loop.call_soon_threadsafe(self._start_tasks, context=self._place.context)

    def pause(self) -> None:
        """Start no more works; `stop` will return them."""
        self._paused = True

    def withdraw(self, consumer: AnyConsumer) -> Sequence[InFlightDelivery]:
        """Return the works of a consumer that did not start; none of them will."""
        with self._lock:
            return self._turns.withdraw(consumer)

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

    # All below runs in the loop's thread, and in the context of its place.

    def _start_tasks(self) -> None:
        place = self._place
        assert place is not None
        while len(self._running) < self._most and not self._paused:
            with self._lock:
                works = self._turns.take()
            if not works:
                return
            processing = _process(works)
            try:
                # Its context is a copy of the running one: not every task factory of an application takes another.
                task = place.loop.create_task(processing)
            except BaseException as error:  # that of the factory
                processing.close()
                self._hand_over((Done(works, [], error),))
                return
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


class OwnLoop:
    """An event loop, made by asyncio's policy, in a thread.

    Args:
        on_exit: called in the loop's thread with a SystemExit or KeyboardInterrupt of a task that nothing awaits;
            asyncio lets these two out of the loop, which goes on.

    Attributes:
        place: where its tasks run, without any context variables.
    """

    def __init__(self, on_exit: Callable[[BaseException], None]) -> None:
        """Start the thread, and return when it has its loop. Raises what kept it from making one."""
        self._on_exit = on_exit
        self._closing = False
        made: Future[LoopPlace] = Future()
        # A daemon: a handler that blocks the loop for ever must not keep the process from ending.
        self._thread: Final = threading.Thread(
            target=self._run, args=(made,), name="idempotent-loop", daemon=True
        )
        self._thread.start()
        self.place: Final = made.result()

    def close(self, timeout_s: float) -> None:
        """Cancel what handlers left running, and close the loop. Waits for at most so many seconds. Idempotent."""
        if self._closing:
            return  # a second stop would end the run of the loop in which the last tasks end
        self._closing = True
        self.place.loop.call_soon_threadsafe(self.place.loop.stop)
        self._thread.join(timeout_s)

    def _run(self, made: Future[LoopPlace]) -> None:
        try:
            with asyncio.Runner() as runner:
                loop = runner.get_loop()
                made.set_result(LoopPlace(loop, threading.get_ident(), Context()))
                while not self._closing:
                    self._go_on(loop)
        except BaseException as error:
            if not made.done():
                made.set_exception(error)
            elif isinstance(
                error, (SystemExit, KeyboardInterrupt)
            ):  # of a task that was cancelled in the end
                self._on_exit(error)
            else:
                raise

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            self._on_exit(error)


def blocked_after_s(leases_s: Iterable[float | None]) -> float:
    """Seconds after which a loop that stands is worth a warning: a third of the shortest lease."""
    return min(
        (lease * _SHARE_OF_LEASE for lease in leases_s if lease is not None), default=_WITHOUT_LEASES_S
    )


class LoopWatch:
    """A thread that asks the loop for a sign of life, and logs where it stands if none comes.

    Args:
        place: the loop.
        limit_s: seconds without a sign of life after which it is logged, once a minute at most.
        consumers: names the consumers whose handlers run; called from the watch's thread.
    """

    def __init__(self, place: LoopPlace, limit_s: float, consumers: Callable[[], list[str]]) -> None:
        """Ask nothing yet."""
        self._place = place
        self._limit_s = limit_s
        self._consumers = consumers
        self._asked: float | None = None
        """When it last asked; None: it has the answer."""
        self._silent_until = 0.0
        self._thread = RepeatingThread(self._look, "idempotent-loop-watch", limit_s / _ASKED_PER_LIMIT)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._thread.stop(None)

    def _look(self) -> bool:
        asked = self._asked
        if asked is not None:
            blocked_s = time.monotonic() - asked
            if blocked_s >= self._limit_s:
                self._log(blocked_s)
            return True
        self._asked = time.monotonic()
        try:
            self._place.loop.call_soon_threadsafe(self._answer)
        except RuntimeError:  # closed
            return False
        return True

    def _answer(self) -> None:
        self._asked = None

    def _log(self, blocked_s: float) -> None:
        now = time.monotonic()
        if now < self._silent_until:
            return
        self._silent_until = now + _REMIND_S
        frame = sys._current_frames().get(self._place.thread)  # noqa: SLF001 - the documented way
        log.warning(
            "event_loop_blocked",
            extra={
                "consumers": self._consumers(),
                "blocked_s": round(blocked_s, 1),
                "where": None if frame is None else where(frame),
                "hint": "await an asynchronous call there, or run it with asyncio.to_thread()",
            },
        )


def where(frame: FrameType) -> str:
    """The line of the application at which a stack stands, such as `/app/orders.py:12 in on_paid`.

    An application that is installed like a library cannot be told from one: then it is the line of the handler.
    """
    # What the loop called; the frames around it are those of the program that started it.
    called = list(takewhile(lambda each: not _is_of(each, "asyncio."), _outwards(frame)))
    theirs = [each for each in called if not _is_of(each, "idempotent.")] or [frame]
    found = next((each for each in theirs if not _is_library(each)), theirs[-1])
    return f"{found.f_code.co_filename}:{found.f_lineno} in {found.f_code.co_qualname}"


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_of(frame: FrameType, package: str) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(package)


def _is_library(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith((*_LIBRARIES, "<frozen"))
