"""Says which test opened a connection of psycopg that is found open when it is garbage-collected, in a later test."""

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from itertools import islice

_unwarned = threading.Event()


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """The connections that are opened meanwhile may be left open: nothing is said whenever they are collected."""
    _unwarned.set()
    try:
        yield
    finally:
        _unwarned.clear()


def remember_births():
    """Let the warning of psycopg name the test, the thread and the functions. Without psycopg it does nothing."""
    with contextlib.suppress(ImportError):
        import psycopg

        kind = next(each for each in psycopg.Connection.__mro__ if "__del__" in vars(each))
        begin, end = kind.__init__, kind.__del__

        def remembering(self, *arguments, **options):
            names = islice(callers(), 2, 24)
            test, thread = os.environ.get("PYTEST_CURRENT_TEST"), threading.current_thread().name
            self.may_stay_open = _unwarned.is_set()
            self.opened_by = f"{test}, in {thread}, by {' < '.join(names)}"
            begin(self, *arguments, **options)

        def telling(self):
            if getattr(self, "may_stay_open", False):
                return
            opened_by = getattr(self, "opened_by", "?")
            end(
                self,
                lambda text, *rest, **more: warnings.warn(f"{text} Opened in {opened_by}", *rest, **more),
            )

        kind.__init__, kind.__del__ = remembering, telling


def callers():
    """The names of the functions that are running, the innermost first."""
    frame = sys._getframe()
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back
