"""HandlerPool: the threads in which a worker's handlers run."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from idempotent.consumer import Consumer
from idempotent.outcomes import Result
from idempotent.worker.holds import Work


@dataclass(frozen=True, slots=True)
class Done:
    """Works that a thread has processed: results aligned with them, or the error that ended them."""

    works: Sequence[Work]
    results: Sequence[Result]
    crash: BaseException | None = None


class HandlerPool:
    """Run consumers on works that one thread submits; the same thread collects the results.

    A free thread takes the works that have waited longest, up to `batch_size` of one consumer: single messages under
    light load, full batches under heavy load. It never waits for a batch to fill. Consumers take turns, and one with a
    `concurrency` of its own never occupies more threads than that.

    Args:
        threads: how many works or batches run at once.
        batch_size: the most works in one `process_many`.
        on_done: called by a handler's thread after each result.
    """

    def __init__(self, threads: int, batch_size: int, on_done: Callable[[], None]) -> None:
        """Start no thread yet."""
        self._batch_size = batch_size
        self._on_done = on_done
        self._changed = threading.Condition()
        self._waiting: dict[Consumer, deque[Work]] = {}
        self._busy: Counter[Consumer] = Counter()
        self._running: dict[int, Sequence[Work]] = {}
        self._stopped = False
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self.in_flight: Counter[Consumer] = Counter()
        """Works of a consumer submitted and not yet among `finished`. Only the submitting thread may use it."""
        # Daemons: a handler that never returns must not keep the process from ending.
        self._threads = [
            threading.Thread(target=self._run, name=f"idempotent-handler-{number}", daemon=True)
            for number in range(threads)
        ]

    @property
    def is_busy(self) -> bool:
        """Whether works are submitted and not yet among `finished`."""
        return any(self.in_flight.values())

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def submit(self, works: Sequence[Work]) -> None:
        """Queue works for the handlers' threads."""
        if not works:
            return
        with self._changed:
            for work in works:
                self.in_flight[work.consumer] += 1
                waiting = self._waiting.get(work.consumer)
                if waiting is None:
                    waiting = self._waiting[work.consumer] = deque()
                waiting.append(work)
            # Wake one thread; if it leaves works, it wakes the next.
            self._changed.notify()

    def finished(self, wait_s: float = 0.0) -> Iterator[Done]:
        """Works that are done; wait up to `wait_s` seconds for the first."""
        while True:
            try:
                done = self._done.get(timeout=wait_s) if wait_s > 0 else self._done.get_nowait()
            except queue.Empty:
                return
            wait_s = 0.0
            self.in_flight[done.works[0].consumer] -= len(done.works)
            yield done

    def stop(self) -> list[Work]:
        """Start no more works. Returns those that did not start; the others will still be `finished`."""
        with self._changed:
            self._stopped = True
            works = [work for waiting in self._waiting.values() for work in waiting]
            self._waiting.clear()
            self._changed.notify_all()
        self.in_flight.subtract(work.consumer for work in works)
        return works

    @property
    def running(self) -> list[Work]:
        """Works that the handlers' threads have at this moment."""
        with self._changed:
            return [work for works in self._running.values() for work in works]

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end, at most `timeout_s` seconds in all."""
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))

    def _run(self) -> None:
        consumer: Consumer | None = None
        while works := self._take(consumer):
            consumer = works[0].consumer
            try:
                if len(works) == 1:
                    done = Done(works, [consumer.process(works[0].delivery.message)])
                else:
                    done = Done(works, consumer.process_many([work.delivery.message for work in works]))
            except BaseException as error:  # the worker stops, and raises it from run()
                done = Done(works, [], error)
            self._done.put(done)
            self._on_done()

    def _take(self, before: Consumer | None) -> list[Work]:
        """The next batch of a thread that ran a batch of `before`; empty when the pool has stopped."""
        with self._changed:
            self._running.pop(threading.get_ident(), None)
            if before is not None:
                self._busy[before] -= 1
            while (consumer := self._next()) is None:
                if self._stopped:
                    return []
                self._changed.wait()
            self._busy[consumer] += 1
            waiting = self._waiting.pop(consumer)
            works = [waiting.popleft() for _ in range(min(len(waiting), self._batch_size))]
            if waiting:
                self._waiting[consumer] = waiting  # to the end: consumers take turns
            if self._waiting:
                self._changed.notify()
            self._running[threading.get_ident()] = works
            return works

    def _next(self) -> Consumer | None:
        """The consumer that has waited longest of those that may occupy one more thread."""
        for consumer in self._waiting:
            most = consumer.options.concurrency
            if most is None or self._busy[consumer] < most:
                return consumer
        return None
