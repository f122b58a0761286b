"""What a model gets for each outcome: the table of docs/mcp.md, with the real client and server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import CallToolResult

from idempotent.checkers import MemoryChecker, RedisChecker, SqlChecker
from tests.adapters.mcp_plugin.shop import Runs, shop
from tests.project.house import ROOT

ROWS: set[tuple[str, str]] = set()
DEADLINE_S = 30


class Shop:
    """A client of a server, and what the server ran."""

    def __init__(self, client: Client, runs: Runs) -> None:
        self.runs = runs
        self.client = client

    async def call(self, name: str, order: Any, **arguments: Any) -> CallToolResult:
        return await self.client.call_tool(name, {"order": order, **arguments})

    async def refused(self, name: str, order: Any, **arguments: Any) -> str:
        """The text of an error."""
        result = await self.call(name, order, **arguments)
        assert result.is_error
        return str(result.content[0].text)  # type: ignore[union-attr]


@asynccontextmanager
async def opened(checker: Any, mode: Any) -> AsyncIterator[Shop]:
    runs = Runs()
    async with Client(shop(checker, runs), mode=mode) as client:
        yield Shop(client, runs)


@pytest.fixture(params=["memory", "redis"])
def checker(request):
    if request.param == "memory":
        yield MemoryChecker()
        return
    made = RedisChecker(request.getfixturevalue("redis_url"), prefix=f"{secrets.token_hex(6)}:")
    yield made
    made.close()


def in_shop(test: Callable[[Shop], Awaitable[None]], checker: Any, mode: str = "auto") -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), opened(checker, mode) as made:
            await test(made)

    asyncio.run(run())


def row(*cells):
    """The row of the table that a test proves."""

    def decorate(test):
        ROWS.add(cells)
        return test

    return decorate


@row("new", "the result")
@row("done before", "the stored result, with the same structured content")
def test_a_new_call_and_a_repeated_one_have_the_result(checker):
    async def test(shop: Shop) -> None:
        for name in ("charge", "charge_async"):
            first, second = [await shop.call(name, "7", cents=5) for _ in range(2)]
            assert first.structured_content == second.structured_content == {"order": "7", "cents": 5}
            assert first.content == second.content
            assert not first.is_error
            assert (await shop.call(name, "8", cents=6)).structured_content == {"order": "8", "cents": 6}
        assert shop.runs.names == ["charge"] * 2 + ["charge_async"] * 2

    in_shop(test, checker)


@row("done before, and its result was not stored", 'error: "do not repeat it, and do not use a new key"')
def test_a_result_that_is_not_stored(checker):
    async def test(shop: Shop) -> None:
        assert not (await shop.call("opaque", "7")).is_error
        text = await shop.refused("opaque", "7")
        assert "was done before" in text
        assert "Do not repeat it, and do not use a new key" in text
        assert shop.runs.names == ["opaque"]

    in_shop(test, checker)


@row(
    "running now",
    'waits up to `wait_s` for the result, then error: "call again in 1 s, with the same arguments"',
)
def test_a_running_call(checker):
    async def test(shop: Shop) -> None:
        first = asyncio.create_task(shop.call("wait", "7"))
        await shop.runs.began.wait()
        assert "Call again in 1 s, with the same arguments" in await shop.refused("wait", "7")
        second = asyncio.create_task(shop.call("wait", "7"))
        shop.runs.may_end.set()
        for each in (await first, await second):
            assert each.structured_content == {"result": "7"}
        assert shop.runs.names == ["wait"]

    in_shop(test, checker)


@row("used with other arguments, by `fingerprint=`", 'error: "for another effect, give a new key"')
def test_other_arguments(checker):
    async def test(shop: Shop) -> None:
        assert not (await shop.call("strict", "7", cents=5)).is_error
        text = await shop.refused("strict", "7", cents=6)
        assert "with other arguments" in text
        assert "For another effect, give a new key" in text
        assert shop.runs.names == ["strict"]

    in_shop(test, checker)


@row(
    'dead, or its effect is unknown (`on_expired_lease="park"`)',
    'error: "do not repeat it, ... ask a person"; without the command that frees the key',
)
def test_a_dead_key(checker):
    async def test(shop: Shop) -> None:
        await shop.refused("refuse", "7", why="fatal")
        text = await shop.refused("refuse", "7", why="fatal")
        assert "Do not repeat it" in text
        assert "Ask a person" in text
        assert "idempotent keys" not in text
        assert shop.runs.names == ["refuse"]

    in_shop(test, checker)


@row("empty", "error: the argument that identifies the call is empty")
def test_an_empty_key(checker):
    async def test(shop: Shop) -> None:
        assert "is empty" in await shop.refused("charge", "", cents=5)
        assert not shop.runs.names

    in_shop(test, checker)


@row(
    "neither a text nor a whole number, such as a float, list or dict",
    "error: the argument that identifies the call must be one",
)
def test_a_key_of_another_type(checker):
    async def test(shop: Shop) -> None:
        for order in (7.5, ["7"], {"number": "7"}, True):
            text = await shop.refused("loose", order)
            assert "Nothing was done" in text
            assert "must be a text or a whole number" in text
        assert not shop.runs.names
        for order in (7, "7"):
            assert not (await shop.call("loose", order)).is_error
        assert shop.runs.names == ["loose"]

    in_shop(test, checker)


@row("not to be recorded, because the tables are missing", 'error: "ask a person to make the tables"')
def test_missing_tables(tmp_path):
    async def test(shop: Shop) -> None:
        text = await shop.refused("charge", "7", cents=5)
        assert "lacks the tables of keys" in text
        assert "Ask a person to make the tables" in text
        assert "Call again later" not in text
        assert "idempotent" not in text  # no command
        assert not shop.runs.names

    made = SqlChecker(f"sqlite:///{tmp_path}/shop.db")
    in_shop(test, made)
    made.close()


@row("unknown, because the store does not answer", 'error: "call again later, with the same arguments"')
def test_a_store_that_is_away():
    async def test(shop: Shop) -> None:
        assert "Call again later, with the same arguments" in await shop.refused("charge", "7", cents=5)
        assert not shop.runs.names

    made = RedisChecker("redis://127.0.0.1:1")
    in_shop(test, made)
    made.close()


@row("- the tool raises `ToolError`", "error, with its text; the key is free")
@row("- the tool raises another exception", "error without its text, as for every tool; the key is free")
def test_a_tool_that_fails(checker):
    async def test(shop: Shop) -> None:
        for times in (1, 2):
            assert (await shop.refused("refuse", "7", why="told")).endswith(": no such card")
            assert await shop.refused("refuse", "8", why="crash") == "Error executing tool refuse"
            assert shop.runs.names == ["refuse"] * 2 * times

    in_shop(test, checker)


@row(
    "- the tool returns a `CallToolResult` that is an error, or an `InputRequiredResult`",
    "that; the key is free",
)
def test_a_tool_that_returns_an_error(checker):
    async def test(shop: Shop) -> None:
        answers = [await shop.call("say_no", "7") for _ in range(3)]
        assert [each.content[0].text for each in answers] == ["no", "yes", "yes"]  # type: ignore[union-attr]
        assert [each.is_error for each in answers] == [True, False, False]
        assert shop.runs.names == ["say_no"] * 2

    in_shop(test, checker)


async def cancelled(shop: Shop, name: str) -> None:
    """The client gives up, and says so by `notifications/cancelled`, while the tool runs."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def give_up() -> None:
                await shop.runs.began.wait()
                scope.cancel()

            group.start_soon(give_up)
            await shop.call(name, "7")
    assert scope.cancelled_caught
    await shop.call("charge", "later", cents=5)  # the server has read what came before


@row(
    "- the client cancels the call",
    "nothing; an `async def` ends as `on_cancel` says, a `def` always runs to its end",
)
def test_a_client_that_cancels(checker):
    async def test(shop: Shop) -> None:
        await cancelled(shop, "wait")
        shop.runs.may_end.set()
        assert (await shop.call("wait", "7")).structured_content == {"result": "7"}
        shop.runs.may_end.clear()
        shop.runs.began.clear()
        await cancelled(shop, "give_up")
        shop.runs.may_end.set()
        assert (await shop.call("give_up", "7")).structured_content == {"result": "7"}
        assert [name for name in shop.runs.names if name != "charge"] == ["wait", "give_up", "give_up"]

    in_shop(test, checker, "legacy")  # with messages between client and server


def test_the_page_has_these_rows():
    page = (ROOT / "docs" / "mcp.md").read_text()
    table = page.partition("| the key of the call is |")[2].partition("\n\n")[0].splitlines()[2:]
    assert {tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in table} == ROWS
