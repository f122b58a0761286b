"""Combiner: the claims and completions of lone messages, as rounds of what arrived meanwhile; CallQueue: who waits."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, Final, TypeAlias

from idempotent.checkers.combining.waiters import (
    ALONE,
    COMPLETE_ALONE,
    Answer,
    ParkedWaiter,
    TaskWaiter,
    ThreadWaiter,
    Waiter,
    wake,
)
from idempotent.checkers.protocol import ClaimProtocol
from idempotent.checkers.side_calls import SideThreads
from idempotent.claims import Claim, ClaimRequest, Completion, Decision, KeyStatus, Lapsed
from idempotent.errors import (
    IdempotentError,
    SchemaError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    described,
)
from idempotent.forks import generation

MOST: Final = 500
"""The calls of each kind in one round."""
MOST_DIRECT: Final = 6
"""The most threads that make their own calls side by side; more calls share rounds (docs/decisions/0031)."""
# Python 3.11 takes as long to look up an enum's member as to create a small object.
_LEAVE: Final = Lapsed.LEAVE
_PARK: Final = KeyStatus.IN_PROGRESS_PARK
# A statement that took longer waited for a lock: as half a round it would wait again.
_AT_ONCE_S: Final = 0.5
# A leader that hangs on a silent network is replaced, so often.
_MAX_HANGING: Final = 7
_CLOSE_S: Final = 10.0
_LOOK_S: Final = 0.01
# A thread that waited longer leads: those before it hang, or were interrupted.
_PATIENCE_S: Final = 10.0
Leader: TypeAlias = "ThreadWaiter | ServingThread"
"""A thread that leads its round, or a server thread."""


def combines(request: ClaimRequest) -> bool:
    """Whether a request may be part of a round: one of a consumer that retries."""
    return request.status is not _PARK and request.partition is None


def at_once(request: ClaimRequest) -> ClaimRequest:
    """The request as part of a round: it waits for no lock, and leaves a lapsed key to a claim of its own."""
    return ClaimRequest(
        request.key,
        request.owner,
        request.fingerprint,
        request.status,
        _LEAVE,
        request.max_attempts,
        waits=False,
    )


def must_be_alone(request: ClaimRequest, decision: Decision) -> bool:
    """Whether a key has to be claimed again, by its own request."""
    takes_over = request.on_lapsed is not _LEAVE and decision.lapsed and decision.claim is None
    return decision is ALONE or takes_over


class Combiner:
    """Claims and completes keys as a protocol does; calls that find several under way share the next statement.

    While few calls are under way, a thread makes its own directly. A waiting thread leads one round
    and hands over to the first that waits; for tasks and parked lives a side thread leads. All may be mixed.

    Args:
        protocol: makes the claims and completions.
        one_writer: its store carries out one write at a time.
    """

    def __init__(self, protocol: ClaimProtocol, *, one_writer: bool = False) -> None:
        self._protocol = protocol
        self._one_writer = one_writer
        self._begin()

    def _begin(self) -> None:
        self._generation = generation.number
        self._side = SideThreads("idempotent-rounds", most=_MAX_HANGING + 1)
        self._calls = CallQueue(self._start_server, one_writer=self._one_writer)

    @property
    def waiting(self) -> int:
        """How many calls wait for their round to begin."""
        return self._current().waiting

    def claim(self, request: ClaimRequest) -> Decision:
        """`ClaimProtocol.claim`, from any thread."""
        if not combines(request):
            return self._protocol.claim(request)
        calls = self._current()
        call = at_once(request)
        try:
            direct = calls.go_direct(call)
            decision: Decision = (
                self._protocol.claim(call) if direct else self._in_round(calls, ThreadWaiter(call))
            )
        except StoreBusyError:
            decision = ALONE
        finally:
            calls.leave_direct(call)
        if decision.claim is None and must_be_alone(request, decision):
            return self._protocol.claim(request)
        return decision

    def complete(self, claim: Claim, result: bytes | None = None) -> bool:
        """`ClaimProtocol.complete`, from any thread."""
        if claim.empty:
            return True
        calls = self._current()
        try:
            if calls.go_direct(claim):
                return self._protocol.complete(claim, result)
            owned: bool | None = self._in_round(calls, ThreadWaiter(Completion(claim, result)))
        finally:
            calls.leave_direct(claim)
        return self._protocol.complete(claim, result) if owned is COMPLETE_ALONE else owned

    def put(self, waiter: TaskWaiter | ParkedWaiter) -> None:
        """Queue a call of a task, which awaits the waiter's signal, or of a parked life."""
        self._current().put(waiter)

    def claimed(self, waiter: Waiter, request: ClaimRequest) -> Decision:
        """The answer to a claim that was queued. Makes it alone, if it must be."""
        decision: Decision = waiter.result()
        return self._protocol.claim(request) if must_be_alone(request, decision) else decision

    def completed(self, waiter: Waiter, claim: Claim, result: bytes | None = None) -> bool:
        """The answer to a completion that was queued. Makes it alone, if it must be."""
        owned: bool | None = waiter.result()
        return self._protocol.complete(claim, result) if owned is COMPLETE_ALONE else owned

    def look(self, waiter: ParkedWaiter) -> None:
        """Have another thread lead, if a parked life has waited for long: the leader may hang."""
        with suppress(RuntimeError):  # the system starts no more threads
            self._calls.replace_leader(waiter)

    def has(self, waiter: ParkedWaiter) -> bool:
        """Whether a parked life was queued."""
        return self._calls.has(waiter)

    def withdraw(self, waiter: TaskWaiter) -> Claim | None:
        """End the wait of a task that was cancelled. Returns the claim that it was given, but will not use."""
        return self._calls.withdraw(waiter)

    def close(self) -> None:
        """Finish the completions that wait, for some seconds at most, and refuse the claims. Idempotent."""
        calls = self._current()
        calls.refuse_claims(StoreUnavailableError("the checker was closed while the claim waited"))
        until = time.monotonic() + _CLOSE_S
        while calls.led and time.monotonic() < until:
            time.sleep(_LOOK_S)
        self._side.close()

    def _current(self) -> CallQueue:
        if self._generation != generation.number:
            self._begin()  # after fork() the waiters and their threads are the parent's
        return self._calls

    def _in_round(self, calls: CallQueue, waiter: ThreadWaiter) -> Any:
        try:
            calls.wait(waiter)
            while not waiter.answered:
                self._round(calls, waiter)
        except BaseException:
            claim = calls.withdraw(waiter)
            if claim is not None:
                self._release([claim])
            raise
        finally:
            calls.leave(waiter)
        return waiter.result()

    def _start_server(self, server: ServingThread) -> None:
        self._side.run(self._serve, self._calls, server)

    def _serve(self, calls: CallQueue, server: ServingThread) -> None:
        try:
            while self._round(calls, server):
                pass
        finally:
            calls.leave(server)

    def _round(self, calls: CallQueue, leader: Leader) -> bool:
        """Send what waits: the completions, then the claims that wait by then. False: nothing waits."""
        completions: list[Waiter] = []
        claims: list[Waiter] = []
        try:
            calls.take_completions(leader, completions)
            if completions:
                self._complete(calls, completions)
            calls.take_claims(leader, claims)
            if claims:
                self._claim(calls, claims)
        except BaseException as error:
            unknown = StoreError(f"a round of claims and completions was interrupted: {described(error)}")
            self._release(calls.answer((waiter, unknown) for waiter in chain(completions, claims)))
            if not isinstance(error, Exception):
                raise
        return bool(completions or claims)

    def _complete(self, calls: CallQueue, waiters: Sequence[Waiter]) -> None:
        completions: list[Any] = [waiter.call for waiter in waiters]
        answers: Sequence[Answer]
        try:
            answers = self._protocol.complete_many(completions)
        except IdempotentError as error:
            answers = [COMPLETE_ALONE if _one_may_be_the_cause(error) else error] * len(waiters)
        calls.answer(zip(waiters, answers, strict=True))

    def _claim(self, calls: CallQueue, waiters: Sequence[Waiter]) -> None:
        """Claim in one statement; if that fails because of one key, each half in one, and so on."""
        requests: list[Any] = [waiter.call for waiter in waiters]
        began = time.monotonic()
        answers: Sequence[Answer]
        try:
            alone = len(requests) == 1
            answers = [self._protocol.claim(requests[0])] if alone else self._protocol.claim_many(requests)
        except IdempotentError as error:
            if not _one_may_be_the_cause(error):
                answers = [error] * len(waiters)
            elif len(waiters) == 1 or time.monotonic() - began > _AT_ONCE_S:
                answers = [ALONE] * len(waiters)
            else:
                half = len(waiters) // 2
                self._claim(calls, waiters[:half])
                self._claim(calls, waiters[half:])
                return
        self._release(calls.answer(zip(waiters, answers, strict=True)))

    def _release(self, claims: Sequence[Claim]) -> None:
        """Free the claims of callers that have gone."""
        if claims:
            with suppress(StoreError):  # the protocol tries again
                self._protocol.release_many([(claim, None) for claim in claims])


def _one_may_be_the_cause(error: IdempotentError) -> bool:
    """Whether a statement for many keys may have failed because of one: a lock, or a value that the store refuses."""
    return isinstance(error, StoreError) and not isinstance(error, (StoreUnavailableError, SchemaError))


class ServingThread:
    """Stands for a thread that leads for tasks and parked lives.

    Attributes:
        since: when it began, by the monotonic clock.
    """

    __slots__ = ("since",)

    def __init__(self) -> None:
        self.since: Final = time.monotonic()


class CallQueue:
    """The waiters, first in, first out, and the leader: the only one that takes waiters and answers them.

    While few calls are under way, a thread makes its own directly. What comes beside them waits for a round: the
    thread whose call or round has ended appoints the first waiting thread; a server thread leads when a task or
    a parked life is the first.

    Args:
        serve: starts a server thread, which takes and leaves as this ServingThread.
        one_writer: the store carries out one write at a time.
    """

    def __init__(self, serve: Callable[[ServingThread], object], *, one_writer: bool = False) -> None:
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
            self._queue_of(waiter).append(waiter)
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
            queue = self._queue_of(waiter)
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
            return waiter.taken or waiter in self._queue_of(waiter)

    def replace_leader(self, waiter: ParkedWaiter) -> None:
        """Have a server lead, if no round has taken a parked life for long, and the last server is not new."""
        long_ago = time.monotonic() - _PATIENCE_S
        with self._lock:
            leader = self._leader
            is_new = isinstance(leader, ServingThread) and leader.since > long_ago
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

        A completion stays in the queue: its effect has happened. Returns the claim that the caller was given, but will
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
        server = ServingThread()
        self._serve(server)
        self._leader = server

    def _queue_of(self, waiter: Waiter) -> deque[Waiter]:
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
