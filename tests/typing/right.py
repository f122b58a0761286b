"""Handlers as they should be: a type checker is silent, and knows what each consumer wraps. Checked, never run.

A comment with "shown" is what an editor shows of a consumer.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, assert_type, reveal_type

import msgspec
import pydantic
from sqlalchemy import Connection, CursorResult, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session
from starlette.applications import Starlette

from idempotent import (
    AsyncConsumer,
    Backoff,
    Consumer,
    Message,
    Registry,
    Result,
    consumer,
    current_claim,
    idempotent,
    keys,
    once,
)
from idempotent.adapters.asgi import IdempotencyKeyMiddleware, authorization
from idempotent.checkers import MemoryChecker
from idempotent.keys import Key

registry = Registry()


class ShopSession(Session):
    pass


class AsyncShopSession(AsyncSession):
    pass


@dataclass
class Receipt:
    cents: int


@consumer("orders", checker=MemoryChecker())
def plain(message: Message) -> None: ...


@consumer("orders", checker=MemoryChecker())
async def awaited(message: Message) -> str:
    return message.subject


@registry.consumer("orders", checker="shop")
def with_session(message: Message, session: Session) -> None: ...


@registry.consumer("orders", checker="shop")
def with_connection(message: Message, connection: Connection) -> int:
    return 1


@registry.consumer("orders", checker="shop")
def with_own_session(message: Message, session: ShopSession) -> None: ...


@registry.consumer("orders", checker="shop")
async def with_async_session(message: Message, session: AsyncSession) -> None: ...


@registry.consumer("orders", checker="shop")
async def with_async_connection(message: Message, connection: AsyncConnection) -> None: ...


@registry.consumer("orders", checker="shop")
async def with_own_async_session(message: Message, session: AsyncShopSession) -> int:
    return 1


@registry.consumer("orders", checker="shop", batch=True)
def batch(messages: list[Message]) -> None: ...


@registry.consumer("orders", checker="shop", batch=True)
def batch_with_session(messages: list[Message], session: Session) -> None: ...


@registry.consumer("orders", checker="shop", batch=True)
def batch_with_own_session(messages: list[Message], session: ShopSession) -> None: ...


@registry.consumer("orders", checker="shop", batch=True)
async def async_batch(messages: list[Message]) -> None: ...


@registry.consumer("orders", checker="shop", batch=True)
async def async_batch_with_own_session(messages: list[Message], session: AsyncShopSession) -> None: ...


@registry.consumer("orders", checker="shop", batch=False)
def with_a_default(message: Message, now: dt.datetime | None = None, *, tries: int = 3) -> Receipt:
    return Receipt(tries)


@registry.consumer("orders", checker="shop")
def returns_anything(message: Message) -> Any: ...


@registry.consumer("orders", checker="shop")
def returns_messages(message: Message) -> list[Message]:
    return [message]


@registry.consumer("orders", checker="shop")
def returns_a_statements_result(message: Message, session: Session) -> CursorResult[Any]:
    return session.connection().execute(text("SELECT 1"))


@registry.consumer("orders", checker="shop")
def returns_one_of_several(message: Message) -> bool | float | dt.date | dict[str, int] | None:
    return None


async def happened(key: Key) -> bool:
    return bool(key.token)


@registry.consumer(
    "orders",
    checker="shop",
    group="billing",
    key=lambda message: message.headers["id"],
    retry_for=(ConnectionError, TimeoutError),
    idempotent_for=KeyError,
    max_attempts=3,
    backoff=Backoff(1, 5),
    on_missing_key="process",
    on_expired_lease=happened,
    on_store_error="retry",
    fingerprint=lambda message: message.body,
    store_result=True,
    concurrency=4,
    handler_timeout_s=30.0,
)
async def every_option(message: Message) -> None: ...


class Callable:
    def __call__(self, message: Message) -> None: ...


class AsyncCallable:
    async def __call__(self, message: Message) -> None: ...


def send(message: Message, *, server: str) -> None: ...


class Service:
    async def handle(self, message: Message) -> None: ...


assert_type(registry.consumer("mail", checker="shop")(Callable()), Consumer[Callable])
assert_type(registry.consumer("mail", checker="shop")(AsyncCallable()), AsyncConsumer[AsyncCallable])
of_a_lambda: Consumer = registry.consumer("mail", checker="shop")(lambda message: message.json())
of_a_partial: Consumer = registry.consumer("mail", checker="shop")(partial(send, server="mail"))
of_a_method: AsyncConsumer = registry.consumer("mail", checker="shop")(Service().handle)

reveal_type(plain)  # shown: Consumer[(message: Message) -> None]
reveal_type(with_session)  # shown: Consumer[(message: Message, session: Session) -> None]
reveal_type(with_own_session)  # shown: Consumer[(Message, ShopSession) -> None]
reveal_type(batch)  # shown: Consumer[(messages: list[Message]) -> None]
reveal_type(awaited)  # shown: AsyncConsumer[(message: Message) -> CoroutineType[Any, Any, str]]


async def use(message: Message, session: Session, async_session: AsyncSession) -> None:
    # The value of a result is what the handler returns, or None if it has not run.
    assert_type(plain(message), Result[None])
    assert_type(with_connection.process(message), Result[int | None])
    assert_type(with_a_default(message).value, Receipt | None)
    assert_type(with_a_default.process_many([message]), list[Result[Receipt | None]])
    assert_type(with_own_session(message).value, None)
    assert_type(await awaited(message), Result[str | None])
    assert_type(await awaited.process(message), Result[str | None])
    assert_type(await awaited.process_many([message]), list[Result[str | None]])
    assert_type((await with_own_async_session(message)).value, int | None)
    assert_type((await async_batch(message)).value, None)
    any_results: list[Result] = [*with_connection.process_many([message]), await awaited(message)]
    assert_type(any_results[0].value, Any)
    # A handler passes these on as an idempotency key and a fence.
    assert_type(current_claim().key.token, str)
    assert_type(current_claim().fence, int)
    # What a handler takes and returns stays visible, with its names and defaults.
    with_session.__wrapped__(message, session=session)
    assert_type(with_a_default.__wrapped__(message, tries=1), Receipt)
    assert_type(await awaited.__wrapped__(message), str)
    await with_async_session.__wrapped__(message, session=async_session)
    assert_type(await with_own_async_session.__wrapped__(message, AsyncShopSession()), int)
    any_plain: list[Consumer] = [plain, with_session, batch_with_session, returns_messages]
    any_async: list[AsyncConsumer] = [awaited, async_batch, every_option]
    for each in (*any_plain, *any_async):
        assert_type(each.name, str)


@idempotent(MemoryChecker(), group="billing", key="order", fingerprint=keys.canonical_json)
def charge(order: str, cents: int = 100, *, note: str = "") -> Receipt:
    return Receipt(cents)


@idempotent(MemoryChecker(), group="billing", key=lambda order, cents: order, wait_s=5, on_cancel="finish")
async def charge_later(order: str, cents: int) -> Receipt:
    return Receipt(cents)


async def calls() -> None:
    assert_type(charge("o-1", note="x"), Receipt)
    assert_type(await charge_later("o-1", 5), Receipt)
    with once(MemoryChecker(), "o-1", group="billing", session=Session) as block:
        assert_type(block.claim.key, Key)
    async with once(MemoryChecker(), 7, group="billing"):
        pass
    plain.process(Message("orders"), call=lambda: 5)


@consumer("orders", group="headers", checker=MemoryChecker(), key=keys.header("id"), on_cancel="park")
def by_header(message: Message) -> None: ...


@consumer(
    "orders", group="fields", checker=MemoryChecker(), key=keys.json("a.b"), fingerprint=keys.canonical_json
)
def by_field(message: Message) -> None: ...


@consumer("orders", group="events", checker=MemoryChecker(), key=keys.cloudevents, registered=False)
async def by_event(message: Message) -> None: ...


class Paid(pydantic.BaseModel):
    order: str


class Shipped(msgspec.Struct):
    order: str


@consumer("orders", group="typed", checker=MemoryChecker())
def of_a_dataclass(receipt: Receipt) -> int:
    return receipt.cents


@consumer("orders", group="typed", checker="shop")
def of_a_model(paid: Paid, message: Message, session: ShopSession) -> None: ...


@consumer("orders", group="typed", checker="shop")
async def of_a_struct(shipped: Shipped, session: AsyncSession) -> str:
    return shipped.order


@consumer("orders", group="typed", checker="shop")
async def of_an_annotated_struct(shipped: Annotated[Shipped, "note"], message: Message) -> None: ...


async def use_bodies(message: Message) -> None:
    assert_type(of_a_dataclass(message), Result[int | None])
    assert_type(of_a_dataclass.__wrapped__(Receipt(5)), int)
    assert_type(of_a_model(message), Result[None])
    assert_type(await of_a_struct(message), Result[str | None])


def of_the_web(app: Starlette) -> None:
    shop = MemoryChecker()
    IdempotencyKeyMiddleware(app, checker=shop, group="shop", scope=authorization, store="all")
    app.add_middleware(
        IdempotencyKeyMiddleware,
        checker=shop,
        group="shop",
        scope=authorization,
        wait_s=1.5,
        paths=["/orders/*"],
    )
