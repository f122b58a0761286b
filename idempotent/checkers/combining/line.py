"""Line: who waits, in which order, and who leads. It knows no store."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, TypeAlias

from idempotent.checkers.combining.waiters import (
    Answer,
    ParkedWaiter,
    TaskWaiter,
    ThreadWaiter,
    Waiter,
    wake,
)
from idempotent.claims import Claim, ClaimRequest

MOST: Final = 500
"""The calls of each kind in one round."""
MOST_DIRECT: Final = 6
"""The most threads that make their own calls side by side; more calls share rounds (docs/decisions/0031)."""
_PATIENCE_S: Final = 10.0


class Server:
    """Stands for a thread that leads for tasks and parked lives.

    Attributes:
        since: when it began, by the monotonic clock.
    """

    __slots__ = ("since",)

    def __init__(self) -> None:
        self.since: Final = time.monotonic()


Leader: TypeAlias = "ThreadWaiter | Server"
"""A thread that leads its round, or a server thread."""


class Line:
    """The waiters, first in, first out, and the leader: the only one that takes waiters and answers them.

    While few calls are under way, a thread makes its own directly. What comes beside them waits for a round: the
    thread whose call or round has ended appoints the first waiting thread; a server thread leads when a task or
    a parked life is the first.

    Args:
        serve: starts a server thread, which takes and leaves as this Server.
        one_writer: the store carries out one write at a time.
    """

    def __init__(self, serve: Callable[[Server], object], *, one_writer: bool = False) -> None:
        self._serve = serve
        self._most_direct = 1 if one_writer else MOST_DIRECT
        self._lock = threading.Lock()
        self._direct: set[int] = set()
        self._completions: deque[Waiter] = deque()
        self._claims: deque[Waiter] = deque()
        self._leader: Leader | None = None

    @property
    def led(self) -> bool:
        """Whether anything waits or is under way."""
        return self._leader is not None or bool(self._direct)

    @property
    def waiting(self) -> int:
        """How many calls are part of no round yet."""
        with self._lock:
            return sum(
                not _is_settled(waiter) for queue in (self._completions, self._claims) for waiter in queue
            )

    def go_direct(self, call: object) -> bool:
        """Whether the caller may make this call at once. When it has ended, or is interrupted, it leaves.

        Most calls go and leave without the lock: what waits is queued before it looks for room, and what leaves looks
        at the queues afterwards, so one of the two sees the other. Two that come at once may be one too many.
        """
        if self._leader is not None or len(self._direct) >= self._most_direct:
            return False
        self._direct.add(id(call))
        return True

    def wait(self, waiter: ThreadWaiter) -> None:
        """Queue a thread, and block until it is answered, or leads."""
        with self._lock:
            self._queue(waiter).append(waiter)
            if self._has_room():
                self._leader = waiter
                return
        while not waiter.signal.acquire(timeout=_PATIENCE_S):
            with self._lock:
                if not waiter.taken:
                    # Those before it hang on a silent network, or were interrupted before they appointed a leader.
                    self._direct.clear()
                    self._leader = waiter
                    return

    def put(self, waiter: TaskWaiter | ParkedWaiter) -> None:
        """Queue a task or a parked life."""
        with self._lock:
            queue = self._queue(waiter)
            queue.append(waiter)
            try:
                if self._has_room():
                    self._start_server()
            except BaseException:
                queue.remove(waiter)
                raise

    def has(self, waiter: Waiter) -> bool:
        """Whether it was queued."""
        with self._lock:
            return waiter.taken or waiter in self._queue(waiter)

    def replace_leader(self, waiter: ParkedWaiter) -> None:
        """Have a server lead, if no round has taken a parked life for long, and the last server is not new."""
        long_ago = time.monotonic() - _PATIENCE_S
        with self._lock:
            leader = self._leader
            is_new = isinstance(leader, Server) and leader.since > long_ago
            if not (waiter.taken or waiter.since > long_ago or is_new):
                self._direct.clear()
                self._start_server()

    def take_completions(self, leader: Leader, taken: list[Waiter]) -> None:
        """Add the completions of the next round to a list: each key once, the others wait for a later round."""
        with self._lock:
            if self._leader is leader:
                _take(self._completions, taken)

    def take_claims(self, leader: Leader, taken: list[Waiter]) -> None:
        """Add the claims of the next round to a list: each key once, the others wait for a later round."""
        with self._lock:
            if self._leader is leader:
                _take(self._claims, taken)

    def answer(self, answers: Iterable[tuple[Waiter, Answer]]) -> list[Claim]:
        """Answer waiters that are not yet answered, and wake them. Returns the claims whose callers have gone."""
        mine, lost = [], []
        for waiter, answer in answers:
            if not waiter.answered:
                waiter.answer = answer
                if not waiter.end():
                    lost.append(waiter)
            if not waiter.woken:
                mine.append(waiter)
        lost += wake(mine)
        return [waiter.claim for waiter in lost if waiter.claim is not None]

    def withdraw(self, waiter: Waiter) -> Claim | None:
        """End the wait of a caller that was interrupted or cancelled. A claim that still waits is dropped.

        A completion stays in the line: its effect has happened. Returns the claim that the caller was given, but will
        not use; a later one is returned by `answer`.
        """
        return None if waiter.end() else waiter.claim

    def leave_direct(self, call: object) -> None:
        """End a direct call, and let waiting calls begin. One that did not go direct is ignored."""
        if id(call) in self._direct:
            self._direct.discard(id(call))
            if self._completions or self._claims:
                with self._lock:
                    self._appoint()

    def leave(self, ended: Leader) -> None:
        """End a round, and let waiting calls begin. Any other leader is ignored."""
        with self._lock:
            if self._leader is ended:
                self._leader = None
                self._appoint()

    def _appoint(self) -> None:
        """Choose the first waiting call as the leader of the next round, unless a round has one."""
        if self._leader is None:
            first = self._first()
            if first is None:
                return
            if isinstance(first, ThreadWaiter) and first.open:
                self._leader = first
                first.wake()
            else:
                self._start_server()

    def refuse_claims(self, error: Exception) -> None:
        """Answer all claims that wait with an error."""
        with self._lock:
            waiting = [waiter for waiter in self._claims if not waiter.taken]
            for waiter in waiting:
                waiter.taken = True
            self._claims.clear()
        self.answer((waiter, error) for waiter in waiting)

    def _has_room(self) -> bool:
        return self._leader is None and len(self._direct) < self._most_direct

    def _start_server(self) -> None:
        server = Server()
        self._serve(server)
        self._leader = server

    def _queue(self, waiter: Waiter) -> deque[Waiter]:
        return self._claims if isinstance(waiter.call, ClaimRequest) else self._completions

    def _first(self) -> Waiter | None:
        """The first that is part of no round yet."""
        for queue in (self._completions, self._claims):
            _drop_settled(queue)
            if queue:
                return queue[0]
        return None


def _take(queue: deque[Waiter], taken: list[Waiter]) -> None:
    keys: set[bytes] = set()
    # Entries are marked before they are removed, so that an interruption loses none.
    for waiter in islice(queue, 2 * MOST):
        if _is_settled(waiter) or waiter.hashed in keys:
            continue
        keys.add(waiter.hashed)
        taken.append(waiter)
        waiter.taken = True
        if len(taken) == MOST:
            break
    _drop_settled(queue)


def _drop_settled(queue: deque[Waiter]) -> None:
    while queue and _is_settled(queue[0]):
        queue.popleft()


def _is_settled(waiter: Waiter) -> bool:
    """Whether no round needs to take it: one has, or it is a claim whose caller has gone."""
    return waiter.taken or (not waiter.open and isinstance(waiter.call, ClaimRequest))
