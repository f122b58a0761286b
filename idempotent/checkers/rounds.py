"""Rounds: a background thread that calls a method again and again."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Final

from idempotent.forks import free_in_child


class Rounds:
    """Calls `work` every `interval_s` seconds in a daemon thread, which starts now.

    It ends when `work` returns False, when `stop` is called, and when the object of the method is collected.

    Args:
        work: a bound method, kept by a weak reference.
        name: the thread's name.
        interval_s: seconds before each round.
    """

    def __init__(self, work: Callable[[], bool], name: str, interval_s: float) -> None:
        self._stopped: Final = free_in_child(threading.Event())
        arguments = (weakref.WeakMethod(work), self._stopped, interval_s)
        threading.Thread(target=_run, args=arguments, name=name, daemon=True).start()

    def stop(self) -> None:
        """Start no more rounds."""
        self._stopped.set()


def _run(
    work_ref: weakref.WeakMethod[Callable[[], bool]], stopped: threading.Event, interval_s: float
) -> None:
    while not stopped.wait(interval_s):
        work = work_ref()
        if work is None or not work():
            return
        del work
