"""What tests with the test brokers of FastStream share."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pydantic
from faststream import BaseMiddleware
from faststream.rabbit import TestRabbitBroker

from idempotent.adapters.faststream import IdempotentMiddleware
from idempotent.checkers import MemoryChecker

ORDER = {"order": "7"}


class Order(pydantic.BaseModel):
    order: str


class Reversed:
    """A codec of FastStream."""

    async def encode(self, message: Any, serializer: Any) -> tuple[bytes, str | None]:
        return json.dumps(message).encode()[::-1], "text/reversed"

    async def decode(self, msg: Any) -> Any:
        return json.loads(msg.body[::-1])


class Seen(BaseMiddleware[Any, Any]):
    """Keeps what is published for a handler, as the test broker gets it."""

    commands: list[Any]

    async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
        if self.msg is not None:
            self.commands.append(cmd)
        return await call_next(cmd)


def protected(**options: Any) -> IdempotentMiddleware:
    return IdempotentMiddleware(options.pop("checker", None) or MemoryChecker(), group="tests", **options)


def seeing() -> type[Seen]:
    return type("SeenHere", (Seen,), {"commands": []})


def send_twice(broker: Any, queue: Any, body: Any = ORDER, **options: Any) -> None:
    async def run() -> None:
        async with TestRabbitBroker(broker) as test:
            for _ in range(2):
                await test.publish(body, queue, message_id="m", **options)

    asyncio.run(run())
