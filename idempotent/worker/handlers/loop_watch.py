"""LoopWatch: logs where an event loop stands while a handler blocks it."""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from types import FrameType
from typing import Final

from idempotent.logs import EventLog
from idempotent.worker.handlers.tasks import LoopPlace

log = EventLog(__name__)

_WITHOUT_LEASES_S: Final = 10.0
_SHARE_OF_LEASE: Final = 1 / 3
_ASKED_PER_LIMIT: Final = 4
_REMIND_S: Final = 60.0
_PATHS: Final = sysconfig.get_paths()
_LIBRARIES: Final = tuple({_PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


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
        self._stopped = threading.Event()
        self._answered = threading.Event()
        self._silent_until = 0.0
        self._thread = threading.Thread(target=self._run, name="idempotent-loop-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._answered.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._limit_s / _ASKED_PER_LIMIT):
            self._answered = answered = threading.Event()
            asked = time.monotonic()
            try:
                self._place.loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # closed
                return
            while not self._stopped.is_set() and not answered.wait(self._limit_s):
                self._log(time.monotonic() - asked)

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
