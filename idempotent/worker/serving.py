"""Runs a worker in a thread beside an event loop, and waits for it in a task of that loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextvars import copy_context

from idempotent.errors import described
from idempotent.logs import EventLog
from idempotent.worker.handlers import LoopPlace
from idempotent.worker.summary import WorkerSummary

log = EventLog(__name__)


async def in_thread(
    run: Callable[[LoopPlace], WorkerSummary], interrupt: Callable[[], None]
) -> WorkerSummary:
    """Run a worker whose tasks belong to the running loop, and wait until it has ended.

    Args:
        run: called in a thread of its own.
        interrupt: called at each cancellation: at the first, the worker stops; at the second, without waiting.

    Raises:
        CancelledError: the task was cancelled; the worker ended without an error.
        BaseException: what `run` raised.
    """
    loop = asyncio.get_running_loop()
    context = copy_context()
    place = LoopPlace(loop, threading.get_ident(), context)
    running = _Running(run, place)
    # A daemon: an application that ends without its loop must not wait for a worker that cannot stop without it.
    thread = threading.Thread(
        target=context.copy().run, args=(running.run,), name="idempotent-worker", daemon=True
    )
    thread.start()
    cancelled = False
    while not running.ended.done():
        try:
            await asyncio.wait([running.ended])
        except asyncio.CancelledError:
            interrupt()
            cancelled = True
        except GeneratorExit:  # the loop was closed, and nothing waits any more
            interrupt()
            interrupt()
            raise
    thread.join()  # it has only to return
    summary = running.ended.result()
    if cancelled:
        raise asyncio.CancelledError
    return summary


class _Running:
    """A worker in a thread, and the future of its summary in a loop."""

    def __init__(self, run: Callable[[LoopPlace], WorkerSummary], place: LoopPlace) -> None:
        self._work = run
        self._place = place
        self.ended: asyncio.Future[WorkerSummary] = place.loop.create_future()

    def run(self) -> None:
        """InFlightDelivery, and tell the loop."""
        try:
            summary = self._work(self._place)
        except BaseException as error:
            # The task that would raise it may be awaited only when the application ends.
            log.error("worker_failed", extra={"error": described(error)})  # noqa: TRY400 - the task raises it
            self._tell(self._failed, error)
        else:
            self._tell(self.ended.set_result, summary)

    def _failed(self, error: BaseException) -> None:
        self.ended.set_exception(error)

    def _tell(self, function: Callable[..., object], argument: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._place.loop.call_soon_threadsafe(function, argument)
