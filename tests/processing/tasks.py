"""Async consumers in tasks: a checker whose steps can be made to wait, and event loops to run them in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import pytest

from idempotent import AsyncConsumer, Message, Registry
from idempotent.checkers import MemoryChecker
from idempotent.checkers.awaiting import Awaiting, InLoop, InThreads
from idempotent.checkers.batching import Combiner
from idempotent.checkers.memory import MemoryBacked
from idempotent.checkers.protocol import ClaimProtocol
from idempotent.claims import Claim, ClaimRequest, Completion, Decision, Failure, Released
from idempotent.observe.observers import Observer

LONGEST_S = 20.0


class BlockingChecker(MemoryChecker):
    """Its steps run beside the event loop, as those of a store that is asked over a network.

    Args:
        combine: claims and completions of lone messages go together, as those of SqlChecker and RedisChecker.

    Attributes:
        waits_at: the hook that waits for `go`, and says so with `reached`; None: no hook does.
    """

    def __init__(self, *, combine: bool = False) -> None:
        super().__init__()
        self.combiner = Combiner(self.protocol) if combine else None
        self.waits_at: str | None = None
        self.reached = threading.Event()
        self.go = threading.Event()

    @cached_property
    def awaiting(self) -> Awaiting:
        return InThreads(self.protocol, self.combiner)

    async def is_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, LONGEST_S)

    def _claim(self, request: ClaimRequest) -> Decision:
        self._wait("_claim")
        return super()._claim(request)

    def _claim_many(self, requests: Any) -> list[Decision]:
        self._wait("_claim_many")
        return super()._claim_many(requests)

    def _complete(self, completion: Completion) -> bool:
        self._wait("_complete")
        return super()._complete(completion)

    def _release(self, claim: Claim, failure: Failure | None) -> Released:
        self._wait("_release")
        return super()._release(claim, failure)

    def _wait(self, hook: str) -> None:
        if self.waits_at == hook:
            self.reached.set()
            assert self.go.wait(LONGEST_S)


class DeafChecker(MemoryChecker):
    """Its claims wait to be cancelled, and are answered all the same, as asyncmy in the middle of an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    @cached_property
    def awaiting(self) -> Awaiting:
        return _Deaf(self.protocol, self.reached)


class _Deaf(InLoop):
    def __init__(self, protocol: ClaimProtocol, reached: asyncio.Event) -> None:
        super().__init__(protocol)
        self._reached = reached

    async def claim(self, request: ClaimRequest) -> Decision:
        self._reached.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(LONGEST_S)
        return await super().claim(request)


BLOCKING: dict[str, Callable[[], BlockingChecker]] = {
    "in threads": BlockingChecker,
    "in rounds": partial(BlockingChecker, combine=True),
}
CHECKERS: dict[str, Callable[[], MemoryBacked]] = {"in the loop": MemoryChecker, **BLOCKING}


def run_in(kind: str, main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine function to its end in a new loop of that kind."""
    factory = pytest.importorskip("uvloop").new_event_loop if kind == "uvloop" else None
    with asyncio.Runner(debug=kind == "debug", loop_factory=factory) as runner:
        return runner.run(asyncio.wait_for(main(), LONGEST_S))


LOOPS = {kind: partial(run_in, kind) for kind in ("asyncio", "debug", "uvloop")}


class Counted(Observer):
    """Keeps the outcomes of messages, as counters and metrics see them."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def processed(self, consumer: str, messages: Any, results: Any) -> None:
        self.outcomes += [result.outcome.value for result in results]


def async_consumer(
    handler: Callable[[Any], Coroutine[Any, Any, Any]], checker: MemoryBacked, **options: Any
) -> AsyncConsumer:
    observers = options.pop("observers", ())
    return Registry(observers).consumer("orders", checker=checker, **options)(handler)


def message(name: str = "1") -> Message:
    return Message("orders", id=name)


class Entered:
    """A handler that says when it runs, and then waits to be cancelled.

    Attributes:
        now: set while it runs.
        names: the messages that it was called with.
        on_cancel: called with the CancelledError, which is raised again afterwards.
    """

    def __init__(self, on_cancel: Callable[[], object] | None = None, waits_for: str | None = None) -> None:
        self.now = asyncio.Event()
        self.names: list[str | None] = []
        self.on_cancel = on_cancel
        self.waits_for = waits_for

    async def __call__(self, message: Message) -> None:
        self.names.append(message.id)
        if self.waits_for not in (None, message.id):
            return
        self.now.set()
        try:
            await asyncio.sleep(LONGEST_S)
        except asyncio.CancelledError:
            if self.on_cancel:
                self.on_cancel()
            raise


async def returns(_: object) -> str:
    return "done"


async def attempts_of(checker: MemoryBacked, name: str = "1") -> int | None:
    """How many attempts are counted when the next one fails. None: it did not run."""

    async def fail(_: Message) -> None:
        raise ValueError

    result = await async_consumer(fail, checker).process(message(name))
    return result.attempt if result.outcome.value == "failed" else None


async def later_attempts_of(checker: MemoryBacked, name: str = "1") -> int | None:
    """The same, for a claim that something else is about to release."""
    for _ in range(1_000):
        if (attempts := await attempts_of(checker, name)) is not None:
            return attempts
        await asyncio.sleep(0.01)
    return None
