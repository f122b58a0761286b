"""What a client learns of a protected tool is what it learns of the function alone."""

from __future__ import annotations

from typing import Annotated

import pydantic
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Resolve
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from idempotent import ConfigurationError
from idempotent.adapters.mcp import idempotent_tool
from idempotent.checkers import MemoryChecker, TransactionalSqlChecker
from tests.adapters.mcp_plugin.shop import Receipt


def charge(order: str, cents: Annotated[int, pydantic.Field(gt=0)] = 5) -> Receipt:
    """Charge an order."""
    return Receipt(order=order, cents=cents)


async def charge_async(order: str, receipts: list[Receipt], ctx: Context) -> dict[str, int]:
    """Charge an order, and say so."""
    return {}


def customer(order: str) -> str:
    return order


def for_customer(order: str, name: Annotated[str, Resolve(customer)]) -> str:
    return name


def plain(order: str):  # type: ignore[no-untyped-def]
    return order


def schema(function):
    made = MCPServer("shop")._tool_manager.add_tool(function)
    assert made.fn is function
    return made.model_dump(exclude={"fn_metadata"}) | {"output": made.output_schema, "async": made.is_async}


@pytest.mark.parametrize("function", [charge, charge_async, for_customer, plain])
def test_a_protected_tool_has_the_schema_of_its_function(function):
    protected = idempotent_tool(MemoryChecker(), group="tests", key="order")(function)
    assert schema(protected) == schema(function)
    assert protected is not function


def book(order: str, session: Session, ctx: Context, cents: int = 5) -> Receipt:
    return Receipt(order=order, cents=cents)


def book_as_seen(order: str, ctx: Context, cents: int = 5) -> Receipt:
    return Receipt(order=order, cents=cents)


async def book_async(order: str, session: AsyncSession) -> Receipt:
    return Receipt(order=order, cents=5)


async def book_async_as_seen(order: str) -> Receipt:
    return Receipt(order=order, cents=5)


@pytest.mark.parametrize(("function", "seen"), [(book, book_as_seen), (book_async, book_async_as_seen)])
def test_the_session_of_the_transaction_is_not_in_it(tmp_path, function, seen):
    engine = (
        create_async_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
        if function is book_async
        else create_engine(f"sqlite:///{tmp_path}/shop.db")
    )
    protected = idempotent_tool(TransactionalSqlChecker(engine), group="tests", key="order")(function)
    named = {"name", "parameters"}
    shown = schema(protected)
    assert {**shown, **dict.fromkeys(named)} == {**schema(seen), **dict.fromkeys(named)}
    expected = schema(seen)["parameters"]
    assert {**shown["parameters"], "title": ""} == {**expected, "title": ""}


def test_an_argument_that_the_tool_does_not_have_is_refused():
    with pytest.raises(ConfigurationError, match="names no argument"):
        idempotent_tool(MemoryChecker(), group="tests", key="number")(charge)
