"""SIGTERM and SIGINT as a request to stop, while a worker runs in the main thread."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def on_stop_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on each of the signals; restore the handlers afterwards. Outside the main thread: do nothing.

    Args:
        stop: runs between two bytecodes of the main thread, which may hold any lock: it must take none.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may install handlers; the application calls Worker.stop()
        return
    before = {number: signal.signal(number, lambda _number, _frame: stop()) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: the handler was not installed from Python, and cannot be restored from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
