"""An HTTP endpoint with `Idempotency-Key`: a client that repeats its request pays once."""

import asyncio
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from idempotent.adapters.asgi import IdempotencyKeyMiddleware, authorization
from idempotent.checkers import MemoryChecker

payments: list[Any] = []


async def pay(request: Request) -> JSONResponse:
    payments.append(await request.json())
    return JSONResponse({"payment": len(payments)}, status_code=201)


app = Starlette(routes=[Route("/payments", pay, methods=["POST"])])
# Several processes share a SqlChecker, RedisChecker or TransactionalSqlChecker.
app.add_middleware(
    IdempotencyKeyMiddleware, checker=MemoryChecker(), group="shop", scope=authorization, required=True
)


async def shop() -> None:
    transport = httpx.ASGITransport(app)
    headers = {"Authorization": "Bearer of-alice", "Idempotency-Key": "order-1"}
    async with httpx.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client:
        for _ in range(3):
            answer = await client.post("/payments", json={"cents": 1000})
            print(answer.status_code, answer.json(), answer.headers.get("idempotent-replayed", "new"))
        other = await client.post("/payments", json={"cents": 2000})
        print(other.status_code, other.json()["type"])


asyncio.run(shop())
assert payments == [{"cents": 1000}]
