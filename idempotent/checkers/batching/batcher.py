"""Batcher: calls that arrive while a batch is under way go together in the next one. It knows nothing of claims."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from idempotent.errors import StoreError, described

MOST: Final = 500
"""The calls in one batch."""
# A batch, or direct calls, that take longer may hang on a silent network: they hold up no others from then on.
_PATIENCE_S: Final = 10.0
_NO_ANSWER: Final = object()

Wake: TypeAlias = "Callable[[Sequence[Call]], Sequence[Call]]"
"""Tells the callers of a batch that their answers are there. Returns those who cannot be told."""


class Call:
    """A call that is to be part of a batch.

    Args:
        lane: which sender makes it.
        argument: what the sender is given.
        key: two calls with the same one are never in one batch.
        wake: tells the caller of the answer.
        signal: what `wake` needs for this call; that of a thread is made when it waits.

    Attributes:
        answer: what the sender answered; an exception is raised by `result`.
        taken: it is part of a batch.
        gone: its caller does not wait any more.
        since: when it was made, by the monotonic clock.
    """

    __slots__ = ("answer", "argument", "gone", "key", "lane", "signal", "since", "taken", "wake")

    def __init__(self, lane: int, argument: object, key: Hashable, wake: Wake, signal: Any = None) -> None:
        self.lane: Final = lane
        self.argument: Final = argument
        self.key: Final = key
        self.wake: Final = wake
        self.signal = signal
        self.since: Final = time.monotonic()
        self.answer: Any = _NO_ANSWER
        self.taken = False
        self.gone = False

    def result(self) -> Any:
        """The answer; an exception is raised."""
        answer = self.answer
        if isinstance(answer, StoreError):
            # Its own object: a traceback that many threads extend is of no use.
            raise type(answer)(str(answer)) from answer
        if isinstance(answer, BaseException):
            raise answer
        return answer


def wake_threads(calls: Sequence[Call]) -> Sequence[Call]:
    """Tell threads, each of which waits for its lock."""
    for call in calls:
        call.signal.release()
    return ()


def wake_tasks(calls: Sequence[Call]) -> Sequence[Call]:
    """Tell tasks, each of which waits for its Signal: one message to each event loop. Returns those of closed loops."""
    loops: dict[asyncio.AbstractEventLoop, list[Call]] = {}
    for call in calls:
        loops.setdefault(call.signal.loop, []).append(call)
    unreachable: list[Call] = []
    for loop, theirs in loops.items():
        try:
            loop.call_soon_threadsafe(_signal, theirs)
        except RuntimeError:
            unreachable += theirs
    return unreachable


def _signal(calls: Sequence[Call]) -> None:
    for call in calls:
        call.signal.set()


class Batcher:
    """Sends calls in batches, one at a time, in a thread that lives as long as any wait.

    While few callers are busy, each makes its own call directly, and no thread is needed. What comes beside them waits,
    first in, first out, and goes together.

    Args:
        senders: carry out batches, one for each lane, and answer each call in its place. A round has a batch of each.
        unused: given the answers whose callers have gone.
        run: runs a function with an argument in another thread.
        most_direct: the most callers that make their calls themselves, side by side.
    """

    def __init__(
        self,
        senders: Sequence[Callable[[Sequence[Any]], Sequence[Any]]],
        unused: Callable[[Sequence[Any]], object],
        run: Callable[[Callable[[object], None], object], object],
        *,
        most_direct: int,
    ) -> None:
        self._senders: Final = senders
        self._unused: Final = unused
        self._run: Final = run
        self._most_direct: Final = most_direct
        self._lock: Final = threading.Lock()
        self._direct: Final[set[int]] = set()
        self._lanes: Final[Sequence[deque[Call]]] = tuple(deque() for _ in senders)
        self._server: object | None = None
        self._began = 0.0  # the newest batch

    @property
    def busy(self) -> bool:
        """Whether any call is under way."""
        return self._server is not None or bool(self._direct)

    @property
    def waiting(self) -> int:
        """How many calls are part of no batch yet."""
        with self._lock:
            return sum(map(len, self._lanes))

    def go_direct(self, call: object) -> bool:
        """Whether the caller may make this call itself, at once. When it has ended, or is interrupted, it leaves.

        Most calls go and leave without the lock. What waits is queued first, and then looks for room; what leaves
        makes room first, and then looks at the queues: so none is missed. Two that come at once may be one too many.
        """
        if self._server is not None or len(self._direct) >= self._most_direct:
            return False
        self._direct.add(id(call))
        return True

    def leave_direct(self, call: object) -> None:
        """End a direct call, and let waiting calls begin. One that did not go direct is ignored."""
        if id(call) in self._direct:
            self._direct.discard(id(call))
            if any(self._lanes):
                self.look()

    def put(self, call: Call) -> None:
        """Queue a call.

        Raises:
            RuntimeError: the system starts no more threads; the call is not queued.
        """
        lane = self._lanes[call.lane]
        with self._lock:
            lane.append(call)
            if self._server is None or call.since - self._began > _PATIENCE_S:
                try:
                    self._start()
                except BaseException:
                    lane.remove(call)
                    raise

    def wait(self, call: Call) -> None:
        """Queue the call of the running thread, and block until it is answered."""
        call.signal = answered = threading.Lock()
        answered.acquire()
        self.put(call)
        while not answered.acquire(timeout=_PATIENCE_S):
            self.look()

    def look(self) -> None:
        """Have another thread send, if what is under way may hang."""
        with self._lock, suppress(RuntimeError):  # no thread can be started: the next `look` tries again
            self._start()

    def has(self, call: Call) -> bool:
        """Whether a call was queued."""
        with self._lock:
            return call.taken or call in self._lanes[call.lane]

    def withdraw(self, call: Call) -> Any:
        """End the wait of a caller that was interrupted or cancelled: what waits is dropped.

        Returns the answer that is there already, and will not be used, or None; a later one is given to `unused`.
        """
        with self._lock:
            call.gone = True
            if not call.taken and call in self._lanes[call.lane]:
                self._lanes[call.lane].remove(call)
            return None if call.answer is _NO_ANSWER else call.answer

    def refuse(self, lane: int, error: Exception) -> None:
        """Answer all calls of a lane that wait with an error."""
        with self._lock:
            calls = list(self._lanes[lane])
            self._lanes[lane].clear()
        self._answer(calls, [error] * len(calls))

    def _start(self) -> None:
        """Have a thread send, if calls wait and there is room. The lock is held."""
        first = next((lane[0] for lane in self._lanes if lane), None)
        if first is None:
            return
        now = time.monotonic()
        if now - max(first.since, self._began) > _PATIENCE_S:
            self._direct.clear()
        elif self._server is not None or len(self._direct) >= self._most_direct:
            return
        server = object()
        self._run(self._serve, server)
        self._server, self._began = server, now

    def _serve(self, server: object) -> None:
        try:
            while sum(self._send(number, server) for number in range(len(self._lanes))):
                pass
        finally:
            with self._lock:
                if self._server is server:
                    self._server = None
                    self._start()

    def _send(self, number: int, server: object) -> bool:
        """Send a batch of a lane. False: none waits, or another server has taken over."""
        calls = self._take(self._lanes[number], server)
        if calls:
            answers: Sequence[Any]
            try:
                answers = self._senders[number]([call.argument for call in calls])
            except BaseException as error:
                answers = [StoreError(f"a batch was interrupted: {described(error)}")] * len(calls)
            self._answer(calls, answers)
        return bool(calls)

    def _take(self, lane: deque[Call], server: object) -> Sequence[Call]:
        """The calls of the next batch: each key once, the others wait for a later one."""
        taken: dict[Hashable, Call] = {}
        later: list[Call] = []
        with self._lock:
            if lane and self._server is server:
                self._began = time.monotonic()
                while lane and len(taken) < MOST and len(later) < MOST:
                    call = lane.popleft()
                    if call.key in taken:
                        later.append(call)
                    else:
                        taken[call.key] = call
                        call.taken = True
                lane.extendleft(reversed(later))
        return [*taken.values()]

    def _answer(self, calls: Sequence[Call], answers: Sequence[Any]) -> None:
        wakes: dict[Wake, list[Call]] = {}
        with self._lock:  # `withdraw` sees the answer, or this that the caller has gone
            for call, answer in zip(calls, answers, strict=True):
                call.answer = answer
            unused = [call for call in calls if call.gone]
            for call in calls:
                wakes.setdefault(call.wake, []).append(call)
        for wake, theirs in wakes.items():
            unused += wake(theirs)
        if unused:
            self._unused([call.answer for call in unused])
