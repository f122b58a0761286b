"""Handlers that `@consumer` refuses: a type checker says so where they are declared. Checked, never run.

The comment names the errors of mypy and of pyright.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session
from starlette.applications import Starlette

import idempotent
import idempotent.checkers
from idempotent import Message, Registry
from idempotent.adapters.asgi import IdempotencyKeyMiddleware, authorization
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.adapters.rabbitmq import RabbitMqAdapter

registry = Registry()


def no_answer(key: str) -> str:
    return key


def no_key(message: Message) -> float:
    return 1.5


class AsyncShopSession(AsyncSession):
    pass


class ShopSession(Session):
    pass


@dataclass
class Receipt:
    cents: int


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
def takes_a_text(message: str) -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
async def awaited_takes_a_text(message: str) -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
def takes_nothing() -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
async def awaited_takes_nothing() -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
def takes_a_list_without_batch(messages: list[Message]) -> None: ...


@registry.consumer("orders", checker="shop", batch=True)  # refused: type-var reportCallIssue
def takes_one_message_of_a_batch(message: Message) -> None: ...


@registry.consumer("orders", checker="shop", batch=True)  # refused: type-var reportCallIssue
async def awaited_takes_one_message_of_a_batch(message: Message, session: AsyncSession) -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
def takes_a_number(message: Message, session: int) -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
def takes_an_async_session(message: Message, session: AsyncSession) -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
def takes_an_async_session_of_the_shop(message: Message, session: AsyncShopSession) -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
def takes_an_async_connection(message: Message, connection: AsyncConnection) -> None: ...


@registry.consumer("orders", checker="shop", batch=True)  # refused: type-var reportCallIssue
def batch_takes_an_async_session(messages: list[Message], session: AsyncSession) -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
async def awaited_takes_a_session(message: Message, session: Session) -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
async def awaited_takes_a_session_of_the_shop(message: Message, session: ShopSession) -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
async def awaited_takes_a_connection(message: Message, connection: Connection) -> None: ...


@registry.consumer("orders", checker="shop", batch=True)  # refused: type-var reportCallIssue
async def awaited_batch_takes_a_session(messages: list[Message], session: Session) -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
def takes_three(message: Message, session: Session, more: int) -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
async def awaited_takes_three(message: Message, session: AsyncSession, more: int) -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
def requires_a_keyword(message: Message, *, server: str) -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
def generates(message: Message) -> Iterator[int]:
    yield 1


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
async def awaited_generates(message: Message) -> AsyncIterator[int]:
    yield 1


@registry.consumer("orders", checker="shop", batch=True)  # refused: type-var reportCallIssue
def batch_generates(messages: list[Message]) -> Iterator[Message]:
    yield from messages


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
def takes_a_list_of_bodies(bodies: list[Receipt]) -> None: ...


@registry.consumer("orders", checker="shop", batch=True)  # refused: type-var reportCallIssue
def batch_takes_bodies(bodies: list[Receipt]) -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
def takes_a_body_and_an_async_session(receipt: Receipt, session: AsyncSession) -> None: ...


@registry.consumer("orders", checker="shop")  # refused: type-var reportCallIssue
async def awaited_takes_a_body_and_a_number(receipt: Receipt, message: Message, number: int) -> None: ...


registry.consumer("orders", checker=5)  # refused: call-overload reportArgumentType
registry.consumer("orders", checker="shop", attempts=3)  # refused: call-overload reportCallIssue
registry.consumer("orders", checker="shop", max_attempts="3")  # refused: call-overload reportArgumentType
registry.consumer("orders", checker="shop", batch=1)  # refused: call-overload reportCallIssue
registry.consumer("orders")  # refused: call-overload reportCallIssue
make = registry.consumer
make("orders", checker="shop", on_expired_lease="retyr")  # refused: call-overload reportArgumentType
make("orders", checker="shop", on_missing_key="park")  # refused: call-overload reportArgumentType
make("orders", checker="shop", on_store_error="proces")  # refused: call-overload reportArgumentType
make("orders", checker="shop", on_expired_lease=no_answer)  # refused: arg-type reportArgumentType
make("orders", checker="shop", key=no_key)  # refused: arg-type reportArgumentType
Message("orders", id=1.5)  # refused: arg-type reportArgumentType
RabbitMqAdapter("amqp://localhost", ack="batch")  # refused: arg-type reportArgumentType
KafkaAdapter("localhost:9092", semantics="exactly-once")  # refused: arg-type reportArgumentType


@registry.consumer("orders", checker="shop")
def plain(message: Message) -> None: ...


@registry.consumer("orders", checker="shop")
async def awaited(message: Message) -> None: ...


@registry.consumer("orders", checker="shop")
def counted(message: Message) -> int:
    return 1


async def use(message: Message) -> Any:
    await plain(message)  # refused: misc reportGeneralTypeIssues
    _ = awaited.process(message).outcome  # refused: attr-defined reportAttributeAccessIssue
    plain.process("orders")  # refused: arg-type reportArgumentType
    plain.__wrapped__(message, 5)  # refused: call-arg reportCallIssue
    counted(message).value + 1  # refused: operator reportOptionalOperand
    counted(message).value.upper()  # refused: union-attr reportAttributeAccessIssue
    counted.__wrapped__(message).upper()  # refused: attr-defined reportAttributeAccessIssue


def misspelt() -> None:
    str(idempotent.Workr)  # refused: attr-defined reportAttributeAccessIssue
    str(idempotent.checkers.TransactionalSQLChecker)  # refused: attr-defined reportAttributeAccessIssue


@idempotent.idempotent(idempotent.checkers.MemoryChecker(), group="billing", key="order")
def charge(order: str, cents: int) -> int:
    return cents


charge("o-1", "5")  # refused: arg-type reportArgumentType
charge("o-1")  # refused: call-arg reportCallIssue


def of_the_web(app: Starlette) -> None:
    web, shop = IdempotencyKeyMiddleware, idempotent.checkers.MemoryChecker()
    web(app, checker=shop, group="shop", scope=authorization, wait=1)  # refused: call-arg reportCallIssue
    add = app.add_middleware
    add(web, checker=shop, group="", scope=authorization, wait_s="")  # refused: arg-type reportArgumentType
