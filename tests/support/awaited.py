"""Async consumers with the face of plain ones, so that the tests of a message's life run over both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from idempotent import AsyncConsumer, Message, Result


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
