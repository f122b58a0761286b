"""What a worker does with its process: a thread beside an event loop, signals, Python's garbage collector."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Final

from idempotent.checkers.side_calls import SideCall, raise_first
from idempotent.errors import described
from idempotent.forks import free_in_child
from idempotent.logs import EventLog
from idempotent.worker.handlers import LoopPlace
from idempotent.worker.settling import WorkerSummary

log = EventLog(__name__)

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# The objects of one message, from the broker's client to its result, with room for those of a handler.
_OBJECTS_OF_ONE: Final = 64

_lock: Final = free_in_child(threading.Lock())
_wanted: Final[dict[object, int]] = {}
_before: tuple[int, int, int] = gc.get_threshold()


async def in_thread(
    run: Callable[[LoopPlace], WorkerSummary], interrupt: Callable[[], object]
) -> WorkerSummary:
    """Run a worker whose tasks belong to the running loop, and wait until it has ended.

    Args:
        run: called in a thread of its own.
        interrupt: called at each cancellation: at the first, the worker stops; at the second, without waiting.

    Raises:
        CancelledError: the task was cancelled; the worker ended without an error.
        BaseException: what `run` raised.
    """
    context = copy_context()
    call = SideCall(_logging, (run, LoopPlace(asyncio.get_running_loop(), threading.get_ident(), context)))
    # A daemon: an application that ends without its loop must not wait for a worker that cannot stop without it.
    thread = threading.Thread(
        target=context.copy().run, args=(call.run,), name="idempotent-worker", daemon=True
    )
    thread.start()
    came: list[asyncio.CancelledError] = []

    def on_cancel(error: asyncio.CancelledError) -> None:
        came.append(error)
        interrupt()

    try:
        await call.end(on_cancel)
    except GeneratorExit:  # the loop was closed, and nothing waits any more
        interrupt()
        interrupt()
        raise
    thread.join()  # it has only to return
    summary = call.result()
    raise_first(came)
    return summary


def _logging(run: Callable[[LoopPlace], WorkerSummary], place: LoopPlace) -> WorkerSummary:
    try:
        return run(place)
    except BaseException as error:
        # The task that would raise it may be awaited only when the application ends.
        log.error("worker_failed", extra={"error": described(error)})  # noqa: TRY400 - the task raises it
        raise


@contextmanager
def on_stop_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on each of the signals; restore the handlers afterwards. Outside the main thread: do nothing.

    Args:
        stop: runs between two bytecodes of the main thread, which may hold any lock: it must take none.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may install handlers; the application calls Worker.stop()
        return
    before = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
    try:
        for number in _STOP_SIGNALS:
            signal.signal(number, lambda _number, _frame: stop())
        yield
    finally:
        for number, handler in before.items():
            # None: the handler was not installed from Python, and cannot be restored from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def relaxed_python_gc(messages: int) -> Iterator[None]:
    """Inside, the objects of this many messages in flight start no collection.

    They are freed by reference counting when their messages are settled. With the default threshold, 700, a batch of
    500 starts a collection every 50 messages, finds most objects alive, and moves them to older generations until
    Python examines all objects of the application again and again: a third of a worker's processor time.

    A higher threshold of the application, or 0 (off), is kept. Workers of one process share the highest.

    Args:
        messages: the most that are in flight at once.
    """
    global _before  # noqa: PLW0603 - the threshold is one for the process
    worker = object()
    try:
        with _lock:
            if not _wanted:
                _before = gc.get_threshold()
            _wanted[worker] = _OBJECTS_OF_ONE * messages
            _apply()
        yield
    finally:
        with _lock:
            if _wanted.pop(worker, None):
                _apply()


def _apply() -> None:
    first, *others = _before
    gc.set_threshold(max([first, *_wanted.values()]) if first else first, *others)
