"""Async consumers and the checkers of tasks with the face of plain ones, so that the same tests run over both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from idempotent import AsyncConsumer, Message, Result
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import Claim, ClaimRequest, Decision

R = TypeVar("R")


def as_async(handler: Callable[..., Any]) -> Callable[..., Any]:
    """An `async def` that does what a handler does, after giving way to other tasks."""
    takes_session = len(inspect.signature(handler).parameters) == 2

    async def handle(given):
        await asyncio.sleep(0)
        return handler(given)

    async def handle_in_session(given, session: AsyncSession):
        return await session.run_sync(lambda inner: handler(given, inner))

    return handle_in_session if takes_session else handle


class Awaited:
    """Calls an async consumer from a thread without a loop. Everything else is the consumer's own."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self.consumer = consumer

    def __call__(self, message: Message) -> Result:
        return asyncio.run(self.consumer(message))

    def process(self, message: Message) -> Result:
        return asyncio.run(self.consumer.process(message))

    def process_many(self, messages: Iterable[Message]) -> list[Result]:
        return asyncio.run(self.consumer.process_many(messages))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.consumer, name)


class AwaitedProtocol:
    """A checker's protocol as tasks reach it: each call, from any thread, is a task of one event loop."""

    def __init__(self, checker: AbstractIdempotentChecker) -> None:
        self._checker = checker
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def call(self, function: Callable[..., R], *arguments: Any) -> R:
        return self.run(self._checker.awaiting.call(function, *arguments))

    def claim(self, request: ClaimRequest) -> Decision:
        return self.run(self._checker.awaiting.claim(request))

    def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Decision]:
        return self.run(self._checker.awaiting.claim_many(requests))

    def complete(self, claim: Claim, result: bytes | None = None) -> bool:
        return self.run(self._checker.awaiting.complete(claim, result))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._checker.protocol, name)
        return partial(self.call, found) if callable(found) else found

    def close(self) -> None:
        if not self._loop.is_closed():
            self.run(asyncio.sleep(0.01))  # the transports that the checker has closed end in the next turns
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class AwaitedChecker:
    """A checker whose protocol is that of its tasks. Everything else is the checker's own."""

    def __init__(self, checker: AbstractIdempotentChecker) -> None:
        self.checker = checker
        self.protocol = self.lone = AwaitedProtocol(checker)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.checker, name)

    def close(self) -> None:
        self.checker.close()
        self.protocol.close()
