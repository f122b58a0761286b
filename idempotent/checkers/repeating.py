"""RepeatingThread: a daemon thread that renews leases, asks stores or deletes keys, at intervals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import MethodType
from weakref import WeakMethod

from idempotent.errors import described
from idempotent.forks import free_in_child
from idempotent.logs import EventLog

log = EventLog(__name__)


class RepeatingThread:
    """Calls `work` again and again in a daemon thread. A call that raises is logged, and the next one comes.

    The thread ends when `work` returns False, when the object of a bound method is collected, and by `stop`; `start`
    then begins a new one. So it does in the child of a fork, which has none.

    Args:
        work: what is called; a bound method is kept by a weak reference.
        name: the thread's name.
        interval_s: seconds that it waits before each call, also the first, unless `wake` ends the wait. None: until
            `wake`. May be changed at any time.
        pause_s: seconds after each call in which `wake` has no effect yet. May be changed at any time.
    """

    def __init__(
        self,
        work: Callable[[], object],
        name: str,
        interval_s: float | None,
        *,
        pause_s: float = 0.0,
    ) -> None:
        """Start nothing yet."""
        self.interval_s = interval_s
        self.pause_s = pause_s
        self._work = WeakMethod(work) if isinstance(work, MethodType) else lambda: work
        self._name = name
        self._lock = free_in_child(threading.Lock())
        self._begin()

    def _begin(self) -> None:
        self._stopped = free_in_child(threading.Event())
        self._woken = free_in_child(threading.Event())
        signals = self._stopped, self._woken
        self._thread = threading.Thread(target=self._repeat, args=signals, name=self._name, daemon=True)

    @property
    def runs(self) -> bool:
        """Whether it has been started, and neither ended nor stopped. After fork(), in the child: False."""
        return self._thread.is_alive() and not self._stopped.is_set()

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self.runs:
            return
        with self._lock:
            if not self.runs:
                self._begin()
                self._thread.start()

    def wake(self) -> None:
        """End the present wait, or the next one."""
        self._woken.set()

    def stop(self, wait_s: float | None = 0.0) -> None:
        """Begin no more calls, and wait for the present one: at most so many seconds; None: to its end."""
        self._stopped.set()
        self._woken.set()
        if wait_s != 0 and self._thread.is_alive():
            self._thread.join(wait_s)

    def _repeat(self, stopped: threading.Event, woken: threading.Event) -> None:
        goes_on = True
        while goes_on:
            woken.wait(self.interval_s)
            if stopped.is_set():
                return
            woken.clear()
            goes_on = self._call() and not stopped.wait(self.pause_s)

    def _call(self) -> bool:
        """Call once. Returns whether to go on. What the call refers to must not live until the next one."""
        work = self._work()
        try:
            return work is not None and work() is not False
        except Exception as error:
            log.exception("background_call_failed", extra={"work": self._name, "error": described(error)})
            return True
