"""Waiters: calls that wait for the answer of a round."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Any, Final, Protocol, TypeAlias, cast

from idempotent.checkers.side_calls import Signal
from idempotent.claims import Claim, ClaimRequest, Completion, Decision, Verdict
from idempotent.errors import StoreError


class Missing(Enum):
    """Not yet an answer."""

    ANSWER = auto()


Call: TypeAlias = "ClaimRequest | Completion"
Answer: TypeAlias = "Decision | bool | BaseException | None"

ALONE: Final = Decision(Verdict.IN_PROGRESS)
"""The answer to a claim that must be made alone: its key is locked, or the store refuses it."""
COMPLETE_ALONE: Final = None
"""The answer to a completion that must be made alone."""


class Waiter:
    """A call, and its answer.

    Attributes:
        call: the claim or completion to make.
        hashed: the hash of its key.
        answer: what the round answered.
        taken: it is part of a round.
        woken: its caller knows that it is answered.
    """

    __slots__ = ("_open", "answer", "call", "hashed", "taken", "woken")

    def __init__(self, call: Call) -> None:
        key = call.key if isinstance(call, ClaimRequest) else call.claim.key
        self.call: Final = call
        self.hashed: Final = key.hash
        self.answer: Answer | Missing = Missing.ANSWER
        self.taken = False
        self.woken = False
        self._open = [True]

    @property
    def open(self) -> bool:
        """Whether a caller still waits for the answer."""
        return bool(self._open)

    @property
    def answered(self) -> bool:
        """Whether `answer` is set."""
        return self.answer is not Missing.ANSWER

    def end(self) -> bool:
        """End the wait: it is answered, or its caller has gone. Returns whether this came first."""
        try:
            self._open.pop()  # atomic
        except IndexError:
            return False
        return True

    def result(self) -> Any:
        """The answer; an exception is raised."""
        answer = self.answer
        if isinstance(answer, StoreError):
            # Its own object: a traceback that many threads extend is of no use.
            raise type(answer)(str(answer)) from answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @property
    def claim(self) -> Claim | None:
        """The claim in the answer."""
        return self.answer.claim if isinstance(self.answer, Decision) else None


class ThreadWaiter(Waiter):
    """A thread that waits.

    Attributes:
        signal: a lock that is released when the waiter is answered, or leads.
    """

    __slots__ = ("signal",)

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.signal: Final = threading.Lock()
        self.signal.acquire()

    def wake(self) -> None:
        """Let the thread go on."""
        if self.signal.locked():
            self.signal.release()


class TaskWaiter(Waiter):
    """A task of an event loop that waits.

    Attributes:
        signal: set when the waiter is answered.
    """

    __slots__ = ("signal",)

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.signal: Final = Signal()


class Threads(Protocol):
    """Threads that go on with parked lives."""

    @property
    def is_alone(self) -> bool:
        """Whether a life that asks has no other beside it, whose calls could go together with its own."""

    def answered(self, waiters: Sequence[ParkedWaiter]) -> None:
        """Go on with the lives of these. Called by the thread that led their round; an interrupted one repeats it."""


class ParkedWaiter(Waiter):
    """A parked life of a message: no thread waits for the answer.

    Attributes:
        threads: one of them goes on with the life.
        life: what they call it.
        since: when it was parked, by the monotonic clock.
        resumed: a thread has gone on with it.
    """

    __slots__ = ("life", "resumed", "since", "threads")

    def __init__(self, call: Call, threads: Threads, life: Any) -> None:
        super().__init__(call)
        self.threads: Final = threads
        self.life: Final = life
        self.since: Final = time.monotonic()
        self.resumed = False

    @property
    def is_completion(self) -> bool:
        """Whether it is a completion, and no claim."""
        return isinstance(self.call, Completion)


def wake(waiters: Iterable[Waiter]) -> list[Waiter]:
    """Tell the callers that their answers are there: one call for each event loop, and for the threads of each worker.

    Returns those whose loop is closed.
    """
    loops: dict[asyncio.AbstractEventLoop, list[TaskWaiter]] = {}
    parked: dict[Threads, list[ParkedWaiter]] = {}
    for waiter in waiters:
        if isinstance(waiter, TaskWaiter):
            loops.setdefault(waiter.signal.loop, []).append(waiter)
        elif isinstance(waiter, ParkedWaiter):
            parked.setdefault(waiter.threads, []).append(waiter)
        else:
            cast("ThreadWaiter", waiter).wake()
            waiter.woken = True
    for threads, of_threads in parked.items():
        threads.answered(of_threads)
        for waiter in of_threads:
            waiter.woken = True
    unreachable: list[Waiter] = []
    for loop, theirs in loops.items():
        try:
            loop.call_soon_threadsafe(_finish, theirs)
        except RuntimeError:
            unreachable += theirs
        for waiter in theirs:
            waiter.woken = True
    return unreachable


def _finish(waiters: Iterable[TaskWaiter]) -> None:
    for waiter in waiters:
        waiter.signal.set()
