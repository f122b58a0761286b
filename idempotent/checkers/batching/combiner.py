"""Combiner: the claims and completions of lone messages, in batches of what arrived meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from idempotent.checkers.batching.batcher import Batcher, Call, Wake, wake_threads
from idempotent.checkers.protocol import ClaimProtocol
from idempotent.checkers.side_calls import SideThreads
from idempotent.claims import Claim, ClaimRequest, Completion, Decision, Lapsed, Verdict
from idempotent.errors import (
    IdempotentError,
    SchemaError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
)
from idempotent.forks import generation

MOST_DIRECT: Final = 6
"""The most threads that make their own calls side by side; more calls share batches (docs/decisions/0031)."""
ALONE: Final = Decision(Verdict.IN_PROGRESS)
"""The answer to a claim that must be made alone: its key is locked, or the store refuses it."""
COMPLETE_ALONE: Final = None
"""The answer to a completion that must be made alone."""
# Completions go first: a duplicate of the same message that waits beside one is told so.
_COMPLETIONS: Final = 0
_CLAIMS: Final = 1
# Python 3.11 takes as long to look up an enum's member as to create a small object.
_LEAVE: Final = Lapsed.LEAVE
# A statement that took longer waited for a lock: as half a batch it would wait again.
_AT_ONCE_S: Final = 0.5
# Batches that hang on a silent network, and the one that goes on beside them.
_MOST_THREADS: Final = 8
_CLOSE_S: Final = 10.0
_LOOK_S: Final = 0.01

Answers: TypeAlias = "Sequence[Decision | bool | BaseException | None]"


def combines(request: ClaimRequest) -> bool:
    """Whether a request may be part of a batch: one that would leave a lapsed key as it is."""
    return request.on_lapsed is _LEAVE and request.partition is None


def at_once(request: ClaimRequest) -> ClaimRequest:
    """The request as part of a batch: it waits for no lock."""
    return ClaimRequest(
        request.key,
        request.owner,
        request.fingerprint,
        request.status,
        request.on_lapsed,
        request.max_attempts,
        waits=False,
    )


def claim_call(request: ClaimRequest, wake: Wake, signal: object = None) -> Call:
    """A claim as part of a batch."""
    return Call(_CLAIMS, at_once(request), request.key.hash, wake, signal)


def completion_call(claim: Claim, result: bytes | None, wake: Wake, signal: object = None) -> Call:
    """A completion as part of a batch."""
    return Call(_COMPLETIONS, Completion(claim, result), claim.key.hash, wake, signal)


class Combiner:
    """Claims and completes keys as a protocol does; calls that find several under way share the next statement.

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
        self._threads = SideThreads("idempotent-rounds", most=_MOST_THREADS)
        self._calls = Batcher(
            (self._complete_batch, self._claim_batch),
            self._release,
            self._threads.run,
            most_direct=1 if self._one_writer else MOST_DIRECT,
        )

    @property
    def calls(self) -> Batcher:
        """Those of this process: after fork() the waiting calls and their threads are the parent's."""
        if self._generation != generation.number:
            self._begin()
        return self._calls

    @property
    def waiting(self) -> int:
        """How many calls wait for their batch to begin."""
        return self.calls.waiting

    def claim(self, request: ClaimRequest) -> Decision:
        """`ClaimProtocol.claim`, from any thread."""
        if not combines(request):
            return self._protocol.claim(request)
        calls = self.calls
        try:
            if calls.go_direct(request):
                decision = self._protocol.claim(at_once(request))
            else:
                decision = self._claim_in_batch(calls, request)
        except StoreBusyError:
            decision = ALONE
        finally:
            calls.leave_direct(request)
        return self._protocol.claim(request) if decision is ALONE else decision

    def complete(self, claim: Claim, result: bytes | None = None) -> bool:
        """`ClaimProtocol.complete`, from any thread. One whose thread is interrupted while it waits is recorded."""
        if claim.empty:
            return True
        calls = self.calls
        try:
            if calls.go_direct(claim):
                return self._protocol.complete(claim, result)
        finally:
            calls.leave_direct(claim)
        call = completion_call(claim, result, wake_threads)
        calls.wait(call)
        return self.completed(call, claim, result)

    def claimed(self, call: Call, request: ClaimRequest) -> Decision:
        """The answer to a claim that was queued. Makes it alone, if it must be."""
        decision: Decision = call.result()
        return self._protocol.claim(request) if decision is ALONE else decision

    def completed(self, call: Call, claim: Claim, result: bytes | None = None) -> bool:
        """The answer to a completion that was queued. Makes it alone, if it must be."""
        owned: bool | None = call.result()
        return self._protocol.complete(claim, result) if owned is COMPLETE_ALONE else owned

    def close(self) -> None:
        """Finish the completions that wait, for some seconds at most, and refuse the claims. Idempotent."""
        calls = self.calls
        calls.refuse(_CLAIMS, StoreUnavailableError("the checker was closed while the claim waited"))
        until = time.monotonic() + _CLOSE_S
        while calls.busy and time.monotonic() < until:
            time.sleep(_LOOK_S)
        self._threads.close()

    def _claim_in_batch(self, calls: Batcher, request: ClaimRequest) -> Decision:
        call = claim_call(request, wake_threads)
        try:
            calls.wait(call)
        except BaseException:
            self._release([calls.withdraw(call)])
            raise
        decision: Decision = call.result()
        return decision

    def _complete_batch(self, completions: Sequence[Completion]) -> Answers:
        try:
            return self._protocol.complete_many(completions)
        except IdempotentError as error:
            return [COMPLETE_ALONE if _one_may_be_the_cause(error) else error] * len(completions)

    def _claim_batch(self, requests: Sequence[ClaimRequest]) -> Answers:
        """Claim in one statement; if that fails because of one key, each half in one, and so on."""
        began = time.monotonic()
        try:
            if len(requests) == 1:
                return [self._protocol.claim(requests[0])]
            return self._protocol.claim_many(requests)
        except Exception as error:
            if not _one_may_be_the_cause(error):
                return [error] * len(requests)
            if len(requests) == 1 or time.monotonic() - began > _AT_ONCE_S:
                return [ALONE] * len(requests)
        half = len(requests) // 2
        return [*self._claim_batch(requests[:half]), *self._claim_batch(requests[half:])]

    def _release(self, answers: Sequence[object]) -> None:
        """Free the claims of callers that have gone."""
        decisions = (answer for answer in answers if isinstance(answer, Decision))
        claims = [decision.claim for decision in decisions if decision.claim is not None]
        if claims:
            with suppress(StoreError):  # the protocol tries again
                self._protocol.release_many([(claim, None) for claim in claims])


def _one_may_be_the_cause(error: Exception) -> bool:
    """Whether a statement for many keys may have failed because of one: a lock, or a value that the store refuses."""
    return isinstance(error, StoreError) and not isinstance(error, (StoreUnavailableError, SchemaError))
