"""Combiner: the claims and completions of lone messages, as rounds of what arrived meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from idempotent.checkers.combining.line import Leader, Line, Server
from idempotent.checkers.combining.waiters import (
    ALONE,
    COMPLETE_ALONE,
    Answer,
    ParkedWaiter,
    TaskWaiter,
    ThreadWaiter,
    Waiter,
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
from idempotent.values import changed

# Python 3.11 takes as long to look up an enum's member as to create a small object.
_LEAVE: Final = Lapsed.LEAVE
_IN_GROUP: Final = KeyStatus.IN_PROGRESS_GROUP
_PARK: Final = KeyStatus.IN_PROGRESS_PARK
# A statement that took longer waited for a lock: as half a round it would wait again.
_AT_ONCE_S: Final = 0.5
# A leader that hangs on a silent network is replaced, so often.
_MAX_HANGING: Final = 7
_CLOSE_S: Final = 10.0
_LOOK_S: Final = 0.01


def combines(request: ClaimRequest) -> bool:
    """Whether a request may be part of a round: one of a consumer that retries."""
    return request.status is not _PARK and request.partition is None and not request.counted


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


def _beside(request: ClaimRequest) -> ClaimRequest:
    """The request in a round of several. All have the same status, as one statement demands."""
    return request if request.status is _IN_GROUP else changed(request, status=_IN_GROUP)


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
        self._line = Line(self._start_server, one_writer=self._one_writer)

    @property
    def waiting(self) -> int:
        """How many calls wait for their round to begin."""
        return self._current().waiting

    def claim(self, request: ClaimRequest) -> Decision:
        """`ClaimProtocol.claim`, from any thread."""
        if not combines(request):
            return self._protocol.claim(request)
        line = self._current()
        call = at_once(request)
        try:
            direct = line.go_direct(call)
            decision: Decision = (
                self._protocol.claim(call) if direct else self._in_round(line, ThreadWaiter(call))
            )
        except StoreBusyError:
            decision = ALONE
        finally:
            line.leave_direct(call)
        if decision.claim is None and must_be_alone(request, decision):
            return self._protocol.claim(request)
        return decision

    def complete(self, claim: Claim, result: bytes | None = None) -> bool:
        """`ClaimProtocol.complete`, from any thread."""
        if claim.empty:
            return True
        line = self._current()
        try:
            if line.go_direct(claim):
                return self._protocol.complete(claim, result)
            owned: bool | None = self._in_round(line, ThreadWaiter(Completion(claim, result)))
        finally:
            line.leave_direct(claim)
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
            self._line.replace_leader(waiter)

    def has(self, waiter: ParkedWaiter) -> bool:
        """Whether a parked life was queued."""
        return self._line.has(waiter)

    def withdraw(self, waiter: TaskWaiter) -> Claim | None:
        """End the wait of a task that was cancelled. Returns the claim that it was given, but will not use."""
        return self._line.withdraw(waiter)

    def close(self) -> None:
        """Finish the completions that wait, for some seconds at most, and refuse the claims. Idempotent."""
        line = self._current()
        line.refuse_claims(StoreUnavailableError("the checker was closed while the claim waited"))
        until = time.monotonic() + _CLOSE_S
        while line.led and time.monotonic() < until:
            time.sleep(_LOOK_S)
        self._side.close()

    def _current(self) -> Line:
        if self._generation != generation.number:
            self._begin()  # after fork() the waiters and their threads are the parent's
        return self._line

    def _in_round(self, line: Line, waiter: ThreadWaiter) -> Any:
        try:
            line.wait(waiter)
            while not waiter.answered:
                self._round(line, waiter)
        except BaseException:
            claim = line.withdraw(waiter)
            if claim is not None:
                self._release([claim])
            raise
        finally:
            line.leave(waiter)
        return waiter.result()

    def _start_server(self, server: Server) -> None:
        self._side.run(self._serve, self._line, server)

    def _serve(self, line: Line, server: Server) -> None:
        try:
            while self._round(line, server):
                pass
        finally:
            line.leave(server)

    def _round(self, line: Line, leader: Leader) -> bool:
        """Send what waits: the completions, then the claims that wait by then. False: nothing waits."""
        completions: list[Waiter] = []
        claims: list[Waiter] = []
        try:
            line.take_completions(leader, completions)
            if completions:
                self._complete(line, completions)
            line.take_claims(leader, claims)
            if claims:
                self._claim(line, claims)
        except BaseException as error:
            unknown = StoreError(f"a round of claims and completions was interrupted: {described(error)}")
            self._release(line.answer((waiter, unknown) for waiter in chain(completions, claims)))
            if not isinstance(error, Exception):
                raise
        return bool(completions or claims)

    def _complete(self, line: Line, waiters: Sequence[Waiter]) -> None:
        completions: list[Any] = [waiter.call for waiter in waiters]
        answers: Sequence[Answer]
        try:
            answers = self._protocol.complete_many(completions)
        except IdempotentError as error:
            answers = [COMPLETE_ALONE if _one_may_be_the_cause(error) else error] * len(waiters)
        line.answer(zip(waiters, answers, strict=True))

    def _claim(self, line: Line, waiters: Sequence[Waiter]) -> None:
        """Claim in one statement; if that fails because of one key, each half in one, and so on."""
        requests: list[Any] = [waiter.call for waiter in waiters]
        began = time.monotonic()
        answers: Sequence[Answer]
        try:
            alone = len(requests) == 1
            answers = (
                [self._protocol.claim(requests[0])]
                if alone
                else self._protocol.claim_many(list(map(_beside, requests)))
            )
        except IdempotentError as error:
            if not _one_may_be_the_cause(error):
                answers = [error] * len(waiters)
            elif len(waiters) == 1 or time.monotonic() - began > _AT_ONCE_S:
                answers = [ALONE] * len(waiters)
            else:
                half = len(waiters) // 2
                self._claim(line, waiters[:half])
                self._claim(line, waiters[half:])
                return
        self._release(line.answer(zip(waiters, answers, strict=True)))

    def _release(self, claims: Sequence[Claim]) -> None:
        """Free the claims of callers that have gone."""
        if claims:
            with suppress(StoreError):  # the protocol tries again
                self._protocol.release_many([(claim, None) for claim in claims])


def _one_may_be_the_cause(error: IdempotentError) -> bool:
    """Whether a statement for many keys may have failed because of one: a lock, or a value that the store refuses."""
    return isinstance(error, StoreError) and not isinstance(error, (StoreUnavailableError, SchemaError))
