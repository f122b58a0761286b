"""A shop in a process of its own: its address is the first line that it writes."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import sqlalchemy as sa
import uvicorn
from fastapi import Depends, FastAPI
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from idempotent.adapters.asgi import IdempotencyKeyMiddleware, authorization, session
from idempotent.checkers import RedisChecker, SqlChecker, TransactionalSqlChecker

LEASE_S = 3.0


def serve(
    kind: str, url: str, effects_url: str, keys: str, table: str, on_expired_lease: str, sleeps_s: str
) -> None:
    """A server whose `/charge` writes a row, says so, and then waits if the order is `a`."""
    options: dict[str, Any] = {}
    checker: Any
    if kind == "transactional":
        engine = create_async_engine(effects_url, pool_size=20)
        checker = TransactionalSqlChecker(engine, table=table)
    else:
        options["on_expired_lease"] = on_expired_lease
        engine = create_async_engine(effects_url, pool_size=20)
        if url.startswith("redis"):
            checker = RedisChecker(url, prefix=f"{keys}:", lease_s=LEASE_S)
        else:
            checker = SqlChecker(url, table=table, lease_s=LEASE_S)
    app, effects = FastAPI(), sa.table(f"{table}_effects", sa.column("id"))

    async def own() -> Any:
        async with AsyncSession(engine) as made, made.begin():
            yield made

    # FastAPI ends a dependency of this scope before the answer.
    where = Depends(session) if kind == "transactional" else Depends(own, scope="function")

    @app.post("/charge/{order}")
    async def charge(order: str, session: AsyncSession = where) -> str:
        await session.execute(effects.insert().values(id=order))
        os.write(1, b"charged\n")
        await asyncio.sleep(float(sleeps_s) if order == "a" else 0)
        return f"charged {order} in {os.getpid()}"

    app.add_middleware(
        IdempotencyKeyMiddleware, checker=checker, scope=authorization, group="tests", wait_s=30, **options
    )
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical")
    server = uvicorn.Server(config)

    async def run() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        os.write(1, b"%d\n" % server.servers[0].sockets[0].getsockname()[1])
        await serving

    asyncio.run(run())


if __name__ == "__main__":
    serve(*sys.argv[1:])
