"""InGreenlets: the steps of a checker with an AsyncEngine, for the tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy.util import greenlet_spawn

from idempotent.checkers.awaiting import Awaiting
from idempotent.checkers.protocol import ClaimProtocol
from idempotent.checkers.side_calls import ended
from idempotent.claims import Claim, ClaimRequest, Decision
from idempotent.stores.sql.bridge import nothing_awaited

T = TypeVar("T")


class InGreenlets(Awaiting):
    """Runs each step in a greenlet of the calling task; its statements are awaited on the task's event loop.

    A step that is cancelled closes its transaction, and terminates its connection: it may hold an unread answer.

    Args:
        protocol: the checker's protocol.
    """

    def __init__(self, protocol: ClaimProtocol) -> None:
        self._protocol: Final = protocol

    async def claim(self, request: ClaimRequest) -> Decision:
        return await greenlet_spawn(self._protocol.claim, request)

    async def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Decision]:
        return await greenlet_spawn(self._protocol.claim_many, requests)

    async def complete(self, claim: Claim, result: bytes | None = None) -> bool:
        return await self.call(self._protocol.complete, claim, result)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        # A task of its own: a cancellation must not reach the driver in the middle of a COMMIT.
        return await ended(asyncio.ensure_future(greenlet_spawn(function, *arguments)))

    def later(self, function: Callable[..., object], *arguments: Any) -> None:
        # Not later, but now: what would be awaited fails, and the transaction's connection is terminated.
        with nothing_awaited(), contextlib.suppress(Exception):
            function(*arguments)
