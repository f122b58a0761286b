"""HandlerPool: the threads and tasks in which a worker's handlers run."""

from __future__ import annotations

import queue
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import Context

from idempotent.consumer import AnyConsumer
from idempotent.worker.handlers.handler_queue import Done
from idempotent.worker.handlers.tasks import HandlerTasks, LoopPlace, LoopWatch, OwnLoop, blocked_after_s
from idempotent.worker.handlers.threads import HandlerThreads
from idempotent.worker.holds import InFlightDelivery


class HandlerPool:
    """Run consumers on works that one thread submits; the same thread collects the results.

    Args:
        concurrency: how many works or batches run at once in threads, and how many in tasks.
        batch_size: the most works in one `process_many`.
        on_done: called by a handler's thread, or by the loop's, after results that arrive together.
    """

    def __init__(self, concurrency: int, batch_size: int, on_done: Callable[[], None]) -> None:
        """Start nothing yet."""
        self._concurrency = concurrency
        self._on_done = on_done
        self._handed_over: queue.SimpleQueue[Sequence[Done]] = queue.SimpleQueue()
        self._done: deque[Done] = deque()
        self._threads = HandlerThreads(batch_size, self._hand_over)
        self._tasks = HandlerTasks(concurrency, batch_size, self._hand_over)
        self._own_loop: OwnLoop | None = None
        self._watch: LoopWatch | None = None
        self._is_mixed = False
        self.in_flight: Counter[AnyConsumer] = Counter()
        """Works of a consumer submitted and not yet among `finished`. Only the submitting thread may use it."""

    def start(self, consumers: Collection[AnyConsumer], place: LoopPlace | None = None) -> None:
        """Start as many threads as the plain consumers can use, and a loop if one is an `async def`.

        Args:
            consumers: those whose works will be submitted.
            place: run tasks in this loop instead of an own one.
        """
        plain = [consumer for consumer in consumers if not consumer.handler.is_async]
        awaited = [consumer for consumer in consumers if consumer.handler.is_async]
        self._is_mixed = bool(plain and awaited)
        wanted = sum(consumer.options.concurrency or self._concurrency for consumer in plain)
        self._threads.start(
            min(wanted, self._concurrency),
            Context() if place is None else place.context,
            suspends=any(consumer.binding.combiner is not None for consumer in plain),
        )
        if awaited:
            if place is None:
                self._own_loop = OwnLoop(lambda error: self._hand_over((Done((), (), error),)))
                place = self._own_loop.place
            self._tasks.start(place)
            leases_s = (consumer.checker.lease_s for consumer in awaited)
            self._watch = LoopWatch(place, blocked_after_s(leases_s), lambda: self._tasks.consumers_at_work)
            self._watch.start()

    @property
    def is_busy(self) -> bool:
        """Whether works are submitted and not yet among `finished`."""
        return any(self.in_flight.values())

    @property
    def has_tasks(self) -> bool:
        """Whether works of `async def` handlers are submitted and not yet among `finished`."""
        return any(count and consumer.handler.is_async for consumer, count in self.in_flight.items())

    def submit(self, works: Sequence[InFlightDelivery]) -> None:
        """Queue works for the handlers.

        Raises:
            RuntimeError: the application closed the loop of its tasks.
        """
        if not works:
            return
        for work in works:
            self.in_flight[work.consumer] += 1
        if self._is_mixed:
            for is_async in (False, True):
                self._submit([work for work in works if work.consumer.handler.is_async is is_async])
        else:
            self._submit(works)

    def finished(self, wait_s: float = 0.0) -> Iterator[Done]:
        """Works that are done; wait up to `wait_s` seconds for the first."""
        while True:
            if not self._done:
                try:
                    done = (
                        self._handed_over.get(timeout=wait_s)
                        if wait_s > 0
                        else self._handed_over.get_nowait()
                    )
                except queue.Empty:
                    return
                # Kept here: if the caller raises between two of them, the others are not lost.
                self._done.extend(done)
            wait_s = 0.0
            each = self._done.popleft()
            if each.works:
                self.in_flight[each.works[0].consumer] -= len(each.works)
            yield each

    def withdraw(self, consumer: AnyConsumer) -> Sequence[InFlightDelivery]:
        """Return the works of a consumer that did not start; none of them will. The others will be `finished`."""
        works = (self._tasks if consumer.handler.is_async else self._threads).withdraw(consumer)
        self.in_flight[consumer] -= len(works)
        return works

    def pause_tasks(self) -> None:
        """Start no more tasks; `stop` will return their works. From any thread."""
        self._tasks.pause()

    def stop(self) -> list[InFlightDelivery]:
        """Start no more works. Returns those that did not start; the others will still be `finished`."""
        works = [*self._threads.stop(), *self._tasks.stop()]
        self.in_flight.subtract(work.consumer for work in works)
        return works

    def cancel(self) -> None:
        """Cancel all tasks: their works will soon be `finished`, without having been processed."""
        self._tasks.cancel()

    @property
    def running(self) -> list[InFlightDelivery]:
        """Works that handlers have at this moment."""
        return [*self._threads.running, *self._tasks.running]

    def close(self, timeout_s: float) -> None:
        """Close the loop, and wait for idle threads, each at most `timeout_s` seconds. Idempotent."""
        self.stop()
        if self._watch is not None:
            self._watch.stop()
        if self._own_loop is not None:
            self._own_loop.close(timeout_s)
        if not self._threads.running:
            self._threads.join(timeout_s)

    def _submit(self, works: Sequence[InFlightDelivery]) -> None:
        if works:
            (self._tasks if works[0].consumer.handler.is_async else self._threads).submit(works)

    def _hand_over(self, done: Sequence[Done]) -> None:
        self._handed_over.put(done)
        try:
            self._on_done()
        except Exception as error:  # the caller must go on: others wait for its thread
            self._handed_over.put((Done((), (), error),))
