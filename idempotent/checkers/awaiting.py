"""Awaiting: a checker's steps for the tasks of an event loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from idempotent.checkers.batching.batcher import Batcher, Call, wake_tasks
from idempotent.checkers.batching.combiner import (
    ALONE,
    COMPLETE_ALONE,
    Combiner,
    claim_call,
    combines,
    completion_call,
)
from idempotent.checkers.protocol import ClaimProtocol
from idempotent.checkers.side_calls import OnCancel, SideCall, SideThreads, Signal
from idempotent.claims import Claim, ClaimRequest, Decision
from idempotent.errors import described
from idempotent.logs import EventLog

log = EventLog(__name__)

R = TypeVar("R")
T = TypeVar("T")

_SIDE_THREADS: Final = 16


class Awaiting(ABC):
    """Runs a checker's steps for tasks.

    A task that is cancelled meanwhile waits on, except for a claim; `on_cancel` gets the cancellation.

    Args:
        protocol: the checker's.
    """

    def __init__(self, protocol: ClaimProtocol) -> None:
        self._protocol: Final = protocol

    def claim(self, request: ClaimRequest) -> Awaitable[Decision]:
        """`ClaimProtocol.claim`. May be cancelled: a claim that it acquires nevertheless is released.

        Raises:
            StoreError: the store did not answer; whether the key was claimed is unknown.
        """
        return self.begin(self._protocol.claim, request)

    def claim_many(self, requests: Sequence[ClaimRequest]) -> Awaitable[list[Decision]]:
        """`ClaimProtocol.claim_many`. May be cancelled, as `claim`.

        Raises:
            StoreError: the store did not answer; which keys were claimed is unknown.
        """
        return self.begin(self._protocol.claim_many, requests)

    def complete(
        self, claim: Claim, result: bytes | None = None, *, on_cancel: OnCancel | None = None
    ) -> Awaitable[bool]:
        """`ClaimProtocol.complete`, to its end.

        Raises:
            StoreError: the store did not record it.
        """
        return self.call(self._protocol.complete, claim, result, on_cancel=on_cancel)

    @abstractmethod
    async def call(self, function: Callable[..., R], *arguments: Any, on_cancel: OnCancel | None = None) -> R:
        """Any other step, to its end."""

    async def begin(self, function: Callable[..., R], *arguments: Any) -> R:
        """A step that is a part of the handler's run, such as the opening of its session: it may be cancelled."""
        return function(*arguments)

    @abstractmethod
    def later(self, function: Callable[..., object], *arguments: Any) -> None:
        """A step whose answer nothing waits for, such as a release when a task ends. Never raises."""

    def close(self) -> None:  # noqa: B027 - optional
        """Finish what `later` was given, for some seconds at most. Idempotent."""


class InLoop(Awaiting):
    """Calls directly, in the loop's thread: for a checker whose steps never block."""

    async def call(self, function: Callable[..., R], *arguments: Any, on_cancel: OnCancel | None = None) -> R:
        del on_cancel
        return function(*arguments)

    def later(self, function: Callable[..., object], *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as error:
            _log_failed(error)


class InThreads(Awaiting):
    """Calls in threads beside the loop. Single claims and completions share rounds with those of other tasks.

    Args:
        protocol: makes the claims and completions that do not go through the combiner.
        combiner: sends single ones together; None: each is a call of its own.
    """

    def __init__(self, protocol: ClaimProtocol, combiner: Combiner | None) -> None:
        super().__init__(protocol)
        self._combiner = combiner
        self._threads = SideThreads("idempotent-side", most=_SIDE_THREADS)

    async def claim(self, request: ClaimRequest) -> Decision:
        if self._combiner is None or not combines(request):
            return await self._claim_alone(request)
        signal = Signal()
        call = claim_call(request, wake_tasks, signal)
        calls = self._combiner.calls
        if not _queued(calls, call):
            return await self._claim_alone(request)
        try:
            await signal.wait()
        except BaseException:
            answer = calls.withdraw(call)
            if isinstance(answer, Decision) and answer.claim is not None:
                self.later(self._protocol.release, answer.claim)
            raise
        decision: Decision = call.result()
        return await self._claim_alone(request) if decision is ALONE else decision

    async def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Decision]:
        return await self._claimed(self._protocol.claim_many, requests, lambda decisions: decisions)

    async def complete(
        self, claim: Claim, result: bytes | None = None, *, on_cancel: OnCancel | None = None
    ) -> bool:
        if claim.empty:
            return True
        owned: bool | None = COMPLETE_ALONE
        if self._combiner is not None:
            signal = Signal()
            call = completion_call(claim, result, wake_tasks, signal)
            if _queued(self._combiner.calls, call):
                await signal.wait_to_its_end(on_cancel)
                owned = call.result()
        if owned is COMPLETE_ALONE:
            return await self.call(self._protocol.complete, claim, result, on_cancel=on_cancel)
        return owned

    async def call(self, function: Callable[..., R], *arguments: Any, on_cancel: OnCancel | None = None) -> R:
        call = SideCall(function, arguments)
        self._run(call)
        await call.end(on_cancel)
        return call.result()

    def later(self, function: Callable[..., object], *arguments: Any) -> None:
        try:
            self._threads.run(function, *arguments)
        except Exception as error:
            _log_failed(error)

    def close(self) -> None:
        self._threads.close()

    def _run(self, call: SideCall[Any]) -> None:
        """Make a call in a thread. Where the system starts no more threads, the loop waits for it: it must not fail."""
        try:
            self._threads.run(call.run)
        except RuntimeError:
            call.run()

    async def _claim_alone(self, request: ClaimRequest) -> Decision:
        return await self._claimed(self._protocol.claim, request, lambda decision: [decision])

    async def _claimed(
        self, claim: Callable[[T], R], asked: T, decisions_of: Callable[[R], Sequence[Decision]]
    ) -> R:
        """Claim in a thread; what was claimed for a task that does not wait any more is released."""

        def free(answer: R) -> None:
            claims = [decision.claim for decision in decisions_of(answer)]
            self._protocol.release_many([(claim, None) for claim in claims if claim is not None])

        call = SideCall(claim, (asked,), unused=free)
        self._run(call)
        try:
            return await call.answer()
        except BaseException:
            answer = call.give_up()
            if answer is not None:
                self.later(free, answer)
            raise


def _queued(calls: Batcher, call: Call) -> bool:
    """Queue a call to go with others. False: the system starts no thread for them, so it goes alone."""
    try:
        calls.put(call)
    except RuntimeError:
        return False
    return True


def _log_failed(error: Exception) -> None:
    log.error("side_call_failed", extra={"error": described(error)})
