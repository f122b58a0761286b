"""HandlerThreads: the threads in which a worker's plain handlers run. HandlerLife: works on their way through them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Final, cast

from idempotent.checkers.batching import COMPLETE_ALONE, Call
from idempotent.claims import Completion
from idempotent.consumer import AnyConsumer, Consumer
from idempotent.outcomes import Result
from idempotent.processing.single import process_one
from idempotent.processing.steps import SuspendableLife, Suspended
from idempotent.worker.handlers.handler_queue import Done, HandlerQueue
from idempotent.worker.holds import InFlightDelivery

# How often an idle thread looks for a suspended life whose batch does not begin.
_LOOK_S: Final = 10.0


class HandlerThreads:
    """Run plain consumers on works.

    Where single messages share batches, no thread waits for one: the life of the message is suspended, and the next
    thread that is free goes on with it. A life has a place until it waits for its completion. There are as many places
    as handlers may run at once, and one thread more, so that an answer does not wait for the end of a handler.

    Args:
        batch_size: the most works in one `process_many`.
        hand_over: takes what is done, in a handler's thread.
    """

    def __init__(self, batch_size: int, hand_over: Callable[[Sequence[Done]], None]) -> None:
        """Start no thread yet."""
        self._hand_over = hand_over
        self._changed = threading.Condition()
        self._turns = HandlerQueue(batch_size)
        self._running: dict[int, HandlerLife] = {}
        # Answered: lives with little left to do, and those that have to run a handler or ask the store.
        self._recorded: deque[HandlerLife] = deque()
        self._ready: deque[HandlerLife] = deque()
        self._suspended = 0
        self._places = 0
        self._suspends = False
        self._idle = 0
        self._is_waking = False
        self._stopped = False
        self._threads: list[threading.Thread] = []

    def start(self, number: int, context: Context, *, suspends: bool = False) -> None:
        """Start threads for so many handlers, each in a copy of the context.

        Args:
            number: handlers that run at once.
            context: the context variables that they see.
            suspends: lives may be suspended.
        """
        self._places = number
        self._suspends = suspends and number > 1
        # Daemons: a handler that never returns must not keep the process from ending.
        for index in range(number + self._suspends):
            thread = threading.Thread(
                target=context.copy().run,
                args=(self._run,),
                name=f"idempotent-handler-{index}",
                daemon=True,
            )
            thread.start()
            self._threads.append(thread)  # one that the system refuses cannot be joined

    def submit(self, works: Sequence[InFlightDelivery]) -> None:
        """Queue works."""
        with self._changed:
            self._turns.add(works)
            self._wake_one()

    def withdraw(self, consumer: AnyConsumer) -> Sequence[InFlightDelivery]:
        """Return the works of a consumer that did not start; none of them will."""
        with self._changed:
            return self._turns.withdraw(consumer)

    def stop(self) -> list[InFlightDelivery]:
        """Start no more works. Returns those that did not start."""
        with self._changed:
            self._stopped = True
            works = self._turns.clear()
            self._changed.notify_all()
        return works

    @property
    def running(self) -> list[InFlightDelivery]:
        """Works that are begun and not done: the threads have them at this moment, or their lives are suspended."""
        with self._changed:
            return [work for life in self._running.values() for work in life.works]

    def have_several(self) -> bool:
        """Whether a life that asks has others beside it."""
        return len(self._running) > 1

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end, at most `timeout_s` seconds in all."""
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))

    def answered(self, calls: Sequence[Call]) -> Sequence[Call]:
        """Go on with the lives of these. Called by the thread that sent their batch."""
        with self._changed:
            for call in calls:
                life: HandlerLife = call.signal
                life.has_place = not isinstance(call.argument, Completion)
                may_block = life.has_place or call.answer is COMPLETE_ALONE
                (self._ready if may_block else self._recorded).append(life)
            self._wake_one()
        return ()

    def _run(self) -> None:
        done: list[Done] = []
        places = suspended = 0
        while lives := self._take(done, places, suspended):
            done, places, suspended = [], 0, 0
            for life in lives:
                has_place = life.has_place  # before others may go on with it
                state = life.go_on()
                if isinstance(state, Done):
                    done.append(state)
                    places += has_place
                else:
                    suspended += 1
                    places += has_place and state is Suspended.COMPLETION
            if done:
                self._hand_over(done)

    def _take(self, done: Sequence[Done], places: int, suspended: int) -> Sequence[HandlerLife]:
        """The next lives to go on with; empty when the pool has stopped.

        Args:
            done: what the thread has handed over.
            places: that its lives have left.
            suspended: how many of its lives are suspended.
        """
        with self._changed:
            self._places += places
            self._suspended += suspended
            for each in done:
                del self._running[id(each.works)]
                self._turns.ended(each.works[0].consumer)
            while not (lives := self._next()):
                if self._stopped and self._suspended <= 0:
                    self._changed.notify_all()
                    return ()
                self._wait()
            self._wake_one()
            return lives

    def _next(self) -> Sequence[HandlerLife]:
        resumed = self._resumed(self._recorded, len(self._recorded)) or self._resumed(self._ready, 1)
        if resumed:
            return resumed
        works = self._turns.take() if self._places else ()
        if not works:
            return ()
        self._places -= 1
        life = self._running[id(works)] = HandlerLife(works, self if self._suspends else None)
        return (life,)

    def _resumed(self, answered: deque[HandlerLife], most: int) -> Sequence[HandlerLife]:
        lives = [answered.popleft() for _ in range(min(most, len(answered)))]
        self._suspended -= len(lives)
        return lives

    def _wait(self) -> None:
        self._idle += 1
        try:
            in_time = self._changed.wait(_LOOK_S if self._suspends else None)
        finally:
            self._idle -= 1
            self._is_waking = False
        if not in_time:
            for life in self._running.values():
                life.look()

    def _wake_one(self) -> None:
        """Wake a thread, if it has something to do, and none is about to look for it.

        Each wakes the next one, if it leaves something: many small lives wake few threads.
        """
        has_next = self._recorded or self._ready or (self._places and self._turns)
        if has_next and self._idle and not self._is_waking:
            self._changed.notify()
            self._is_waking = True  # last: an interrupted call must not prevent the next one


class HandlerLife:
    """Works of one consumer that were taken together.

    Args:
        works: these.
        threads: the threads in which a single one may be suspended; None: it keeps its thread.

    Attributes:
        has_place: it does not wait for its completion yet.
    """

    __slots__ = ("_life", "_threads", "has_place", "works")

    def __init__(self, works: Sequence[InFlightDelivery], threads: HandlerThreads | None) -> None:
        self.works = works
        self.has_place = True
        self._threads = threads if len(works) == 1 else None
        self._life: SuspendableLife[Result] | None = None

    def look(self) -> None:
        """See to it that its batch begins, if it is suspended and has waited for long."""
        if self._life is not None:
            self._life.calls.look()

    def go_on(self) -> Done | Suspended:
        """Process the works, or go on with a single one."""
        try:
            life = self._life or self._begin()
            if life is None:
                return Done(self.works, self._process())
            result = life.go_on()
            if isinstance(result, Suspended):
                return result
            self._consumer.report(self.works[0].delivery.message, result)
            return Done(self.works, [result])
        except BaseException as error:  # the worker stops, and raises it from run()
            return Done(self.works, [], error)

    def _begin(self) -> SuspendableLife[Result] | None:
        binding, threads = self._consumer.binding, self._threads
        if threads is not None and binding.combiner is not None:
            life = process_one(binding, self.works[0].delivery.message)
            self._life = SuspendableLife(life, binding.combiner, threads.answered, self, threads.have_several)
        return self._life

    def _process(self) -> Sequence[Result]:
        messages = [work.delivery.message for work in self.works]
        if len(messages) == 1:
            return [self._consumer.process(messages[0])]
        return self._consumer.process_many(messages)

    @property
    def _consumer(self) -> Consumer:
        return cast("Consumer", self.works[0].consumer)
