"""A server with protected tools, also as a process: `python -m tests.adapters.mcp_plugin.shop URL TABLE RAN KIND`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pydantic
import sqlalchemy as sa
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent
from sqlalchemy.orm import Session

from idempotent.adapters.mcp import idempotent_tool
from idempotent.checkers import SqlChecker, TransactionalSqlChecker

LEASE_S = 3.0


class Receipt(pydantic.BaseModel):
    """What a customer gets."""

    order: str
    cents: int


class Runs:
    """How often each tool ran, and whether a tool waits."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()


def shop(checker: Any, runs: Runs) -> MCPServer:
    """A server over a checker."""
    server = MCPServer("shop")

    def tool(name: str, **options: Any) -> Any:
        def decorate(function: Any) -> Any:
            given = {"group": "tests", "key": "order", "name": name, **options}
            return server.tool(name)(idempotent_tool(checker, **given)(function))

        return decorate

    @tool("charge")
    def charge(order: str, cents: int) -> Receipt:
        runs.names.append("charge")
        return Receipt(order=order, cents=cents)

    @tool("charge_async")
    async def charge_async(order: str, cents: int, ctx: Context) -> Receipt:
        await ctx.report_progress(1, 2)
        runs.names.append("charge_async")
        return Receipt(order=order, cents=cents)

    @tool("strict", fingerprint=lambda order, cents: cents)
    def strict(order: str, cents: int) -> None:
        runs.names.append("strict")

    @tool("loose")
    def loose(order: Any) -> None:
        runs.names.append("loose")

    @tool("opaque")
    def opaque(order: str):  # type: ignore[no-untyped-def]
        runs.names.append("opaque")
        return (order,)

    @tool("wait", wait_s=0.3)
    async def wait(order: str) -> str:
        runs.names.append("wait")
        runs.began.set()
        await runs.may_end.wait()
        return order

    @tool("give_up", on_cancel="retry")
    async def give_up(order: str) -> str:
        runs.names.append("give_up")
        runs.began.set()
        await runs.may_end.wait()
        return order

    @tool("refuse", dead_for=ZeroDivisionError)
    def refuse(order: str, why: str) -> None:
        runs.names.append("refuse")
        raise {"told": ToolError, "crash": ValueError, "fatal": ZeroDivisionError}[why]("no such card")

    @tool("say_no")
    async def say_no(order: str) -> CallToolResult:
        runs.names.append("say_no")
        failed = runs.names.count("say_no") == 1
        return CallToolResult(
            content=[TextContent(type="text", text="no" if failed else "yes")], is_error=failed
        )

    return server


def killed_shop(url: str, table: str, ran: str, kind: str) -> MCPServer:
    """A server whose process dies in its tool, the first time."""
    engine = sa.create_engine(url)
    server = MCPServer("shop")
    insert = sa.text(f"INSERT INTO {table}_effects (id) VALUES (:id)")

    def die_once() -> None:
        with Path(ran).open("a") as file:
            file.write("book\n")
        if len(Path(ran).read_text().splitlines()) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    if kind == "transactional":

        @server.tool()
        @idempotent_tool(TransactionalSqlChecker(engine, table=table), group="tests", key="order")
        def book(order: str, session: Session) -> Receipt:
            session.execute(insert, {"id": order})
            die_once()
            return Receipt(order=order, cents=1)

    else:
        checker = SqlChecker(engine, table=table, lease_s=LEASE_S)
        expired: Any = kind

        @server.tool(name="book")
        @idempotent_tool(checker, group="tests", key="order", on_expired_lease=expired)
        def book_outside(order: str) -> Receipt:
            with engine.begin() as connection:
                connection.execute(insert, {"id": order})
            die_once()
            return Receipt(order=order, cents=1)

    return server


if __name__ == "__main__":
    killed_shop(*sys.argv[1:]).run("stdio")
