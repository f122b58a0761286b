"""Steps that can be cancelled in two ways: a task, as asyncio does it, and a scope of anyio, which repeats it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeAlias, TypeVar

import anyio

R = TypeVar("R")


class InScope(Generic[R]):
    """A step in a scope of anyio. It has the face of a task: to cancel it cancels its scope."""

    def __init__(self, step: Coroutine[Any, Any, R]) -> None:
        self.scope = anyio.CancelScope()
        self.task: asyncio.Task[R] = asyncio.create_task(self._run(step))

    async def _run(self, step: Coroutine[Any, Any, R]) -> R:
        with self.scope:
            return await step
        # The scope has let nothing out, and its task goes on.
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    def __await__(self) -> Generator[Any, Any, R]:
        return self.task.__await__()

    def cancel(self) -> None:
        self.scope.cancel()

    def cancelled(self) -> bool:
        return self.task.cancelled()

    def done(self) -> bool:
        return self.task.done()


Begin: TypeAlias = Callable[[Coroutine[Any, Any, R]], "asyncio.Task[R] | InScope[R]"]
BEGINNINGS: dict[str, Begin[Any]] = {"task": asyncio.create_task, "scope": InScope}
