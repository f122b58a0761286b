"""What is refused, and what the middleware does in the test brokers of FastStream."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pydantic
import pytest
from fast_depends.exceptions import ValidationError
from fast_depends.msgspec import MsgSpecSerializer
from fast_depends.pydantic import PydanticSerializer
from faststream import AckPolicy, Depends
from faststream.confluent import KafkaBroker
from faststream.rabbit import (
    ExchangeType,
    RabbitBroker,
    RabbitExchange,
    RabbitMessage,
    RabbitQueue,
    RabbitRouter,
    TestRabbitBroker,
)
from sqlalchemy.ext.asyncio import create_async_engine

from idempotent import ConfigurationError
from idempotent.adapters.copies import KEY_HEADER
from idempotent.adapters.faststream import message_id, session
from idempotent.checkers import RedisChecker, TransactionalSqlChecker
from idempotent.errors import SchemaError
from tests.adapters.faststream_plugin.brokers import ORDER, Order, Reversed, protected, send_twice
from tests.support.tables import new_name


def kafka(**options: Any) -> Any:
    middleware = protected()
    broker = KafkaBroker(middlewares=[middleware])
    broker.subscriber("orders", group_id="g", **options)(echo)
    return middleware, broker


def rabbit(**options: Any) -> Any:
    middleware = protected()
    broker = RabbitBroker(middlewares=[middleware])
    broker.subscriber("orders", **options)(echo)
    return middleware, broker


async def echo(body: str) -> str:
    return body


async def echo_order(order: Order) -> str:
    return order.order


def batch_publisher() -> Any:
    middleware, broker = kafka(ack_policy=AckPolicy.ACK)
    broker.subscriber("others", group_id="g", ack_policy=AckPolicy.ACK)(
        broker.publisher("out", batch=True)(echo)
    )
    return middleware, broker


def own_codec() -> Any:
    middleware = protected()
    broker = RabbitBroker(middlewares=[middleware], codec=Reversed())
    broker.subscriber("orders")(broker.publisher("out")(echo))
    return middleware, broker


def two() -> Any:
    middleware, broker = rabbit()
    router = RabbitRouter(middlewares=[protected()])
    router.subscriber("others")(echo)
    broker.include_router(router)
    return middleware, broker


REFUSED = {
    "kafka's default": (kafka, "AckPolicy.ACK_FIRST"),
    "first": (lambda: rabbit(ack_policy=AckPolicy.ACK_FIRST), "AckPolicy.ACK_FIRST"),
    "manual": (lambda: rabbit(ack_policy=AckPolicy.MANUAL), "AckPolicy.MANUAL"),
    "batch": (lambda: kafka(ack_policy=AckPolicy.ACK, batch=True), "batch"),
    "batch publisher": (batch_publisher, "batch publisher"),
    "own codec": (own_codec, "give codec="),
    "two": (two, "wait for each other"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_protected_is_refused_before_the_start(case):
    make, says = REFUSED[case]
    middleware, broker = make()
    with pytest.raises(ConfigurationError, match=says):
        middleware.check(broker)


def test_what_can_be_protected_is_not_refused():
    for middleware, broker in (rabbit(), kafka(ack_policy=AckPolicy.NACK_ON_ERROR)):
        middleware.check(broker)
        other = protected()
        other.check(broker)
    protected().check(kafka()[1])  # which it does not protect


def test_missing_tables_are_refused_before_the_start(postgres_url):
    middleware = protected(
        checker=TransactionalSqlChecker(create_async_engine(postgres_url), table=new_name())
    )
    with pytest.raises(SchemaError, match="is missing"):
        middleware.check(RabbitBroker(middlewares=[middleware]))


def test_a_store_that_is_away_is_waited_for():
    checker = RedisChecker("redis://127.0.0.1:1")
    middleware = protected(checker=checker)
    middleware.check(RabbitBroker(middlewares=[middleware]))
    checker.close()


def test_a_dropped_duplicate_is_logged_for_who_asks(caplog):
    broker = RabbitBroker(middlewares=[protected()])
    broker.subscriber("orders")(echo_order)
    with caplog.at_level(logging.DEBUG, "idempotent"):
        send_twice(broker, "orders")
    (line,) = [line for line in caplog.records if getattr(line, "event", "") == "duplicate_dropped"]
    assert (line.levelname, line.consumer, line.key) == ("DEBUG", "orders:tests", "orders:tests:m")


@pytest.mark.parametrize("policy", [AckPolicy.ACK_FIRST, AckPolicy.MANUAL])
def test_unchecked_it_is_refused_at_the_first_message(policy, caplog):
    _, broker = rabbit(ack_policy=policy)

    async def run() -> None:
        async with TestRabbitBroker(broker) as test:
            await test.publish("7", "orders")

    with pytest.raises(ConfigurationError, match=policy.name):
        asyncio.run(run())
    assert "subscriber_refused" in [getattr(line, "event", "") for line in caplog.records]


def test_a_transactional_checker_without_an_async_engine_is_refused(tmp_path):
    checker = TransactionalSqlChecker(f"sqlite:///{tmp_path}/keys.db")
    with pytest.raises(ConfigurationError, match="AsyncEngine"):
        protected(checker=checker)
    checker.close()


def test_queues_with_one_routing_key_have_keys_of_their_own():
    runs = []
    broker = RabbitBroker(middlewares=[protected()])
    exchange = RabbitExchange("shop", type=ExchangeType.TOPIC)

    def handler(name: str) -> Any:
        async def handle(order: Order) -> None:
            runs.append(name)

        return handle

    for name in ("billing", "mail"):
        broker.subscriber(RabbitQueue(name, routing_key="orders.*"), exchange)(handler(name))

    send_twice(broker, "orders.paid", exchange=exchange)
    assert sorted(runs) == ["billing", "mail"]


def test_routers_prefix_the_names_of_their_queues():
    runs = []
    broker = RabbitBroker(middlewares=[protected()])
    for name in ("a.", "b."):
        router = RabbitRouter(prefix=name)

        @router.subscriber("orders")
        async def handle(order: Order) -> None:
            runs.append(order)

        broker.include_router(router)

    async def run() -> None:
        async with TestRabbitBroker(broker) as test:
            for name in ("a.orders", "b.orders") * 2:
                await test.publish(ORDER, name, message_id="m")

    asyncio.run(run())
    assert len(runs) == 2


def test_dependencies_and_threads_work_as_they_are():
    runs = []
    broker = RabbitBroker(middlewares=[protected()])

    def clerk() -> str:
        return "alice"

    @broker.subscriber("orders")
    def charge(order: Order, name: str = Depends(clerk)) -> None:
        runs.append((order, name))

    send_twice(broker, "orders")
    assert runs == [(Order(order="7"), "alice")]


SERIALIZERS = {
    "pydantic": PydanticSerializer(),
    "pydantic's own": PydanticSerializer(use_fastdepends_errors=False),
    "msgspec": MsgSpecSerializer(),
    "msgspec's own": MsgSpecSerializer(use_fastdepends_errors=False),
}


@pytest.mark.parametrize("kind", SERIALIZERS)
def test_a_body_is_refused_as_any_serializer_does_it(kind, caplog):
    ran = []
    broker = RabbitBroker(middlewares=[protected()], serializer=SERIALIZERS[kind])

    @dataclass
    class Paid:
        order: int

    @broker.subscriber("orders")
    async def charge(paid: Paid) -> None:
        ran.append(paid.order)

    send_twice(broker, "orders", {"order": "seven"})
    assert [line.event for line in caplog.records if line.name.startswith("idempotent")] == [
        "message_rejected"
    ] * 2
    send_twice(broker, "orders", {"order": 7})
    assert ran == [7]


def test_a_body_that_is_no_json_is_rejected_and_one_that_no_server_decodes_fails(caplog):
    def decode(message: Any) -> Any:
        raise ConnectionError

    for decoder in (None, decode):
        broker = RabbitBroker(middlewares=[protected()], decoder=decoder)
        broker.subscriber("orders")(echo)
        if decoder is None:
            send_twice(broker, "orders", b"{", content_type="application/json")
        else:
            with pytest.raises(ConnectionError):
                send_twice(broker, "orders")
    rejected = [line.why for line in caplog.records if getattr(line, "event", "") == "message_rejected"]
    assert rejected == ["JSONDecodeError"] * 2


def test_the_dependency_of_a_handler_may_raise_what_it_likes():
    async def clerk() -> str:
        Order.model_validate({})
        return "alice"

    broker = RabbitBroker(middlewares=[protected()])

    @broker.subscriber("orders")
    async def charge(order: Order, name: str = Depends(clerk)) -> None: ...

    with pytest.raises(pydantic.ValidationError):
        send_twice(broker, "orders")


def test_the_key_may_be_awaited_and_one_that_raises_is_rejected(caplog):
    runs = []

    async def key(message: Any) -> str:
        found: str = (await message.decode())["order"]
        return found

    broker = RabbitBroker(middlewares=[protected(key=key)])

    @broker.subscriber("orders")
    async def charge(order: dict[str, str]) -> None:
        runs.append(order)

    async def run() -> None:
        async with TestRabbitBroker(broker) as test:
            for body in (ORDER, ORDER, {}, {"order": ""}):
                await test.publish(body, "orders")

    asyncio.run(run())
    assert runs == [ORDER]
    assert [line.why for line in caplog.records if getattr(line, "event", "") == "message_rejected"] == [
        "key= raised KeyError: 'order'",
        "no key",
    ]


def test_a_handler_that_settles_the_message_itself_leaves_the_key_free_unless_it_acknowledges():
    runs = []
    broker = RabbitBroker(middlewares=[protected()])

    @broker.subscriber("orders")
    async def charge(order: Order, message: RabbitMessage) -> None:
        runs.append(order)
        await (message.nack() if len(runs) == 1 else message.ack())

    send_twice(broker, "orders")
    send_twice(broker, "orders")
    assert len(runs) == 2


@pytest.mark.parametrize("kind", ["pydantic", "pydantic's own"])
def test_the_error_of_a_handler_is_its_own_even_if_pydantic_raised_it(kind):
    broker = RabbitBroker(middlewares=[protected()], serializer=SERIALIZERS[kind])

    @broker.subscriber("orders")
    async def charge(order: Order) -> int:
        if order.order == "7":
            Order.model_validate({})
        return "no number"  # type: ignore[return-value]

    for body in (ORDER, {"order": "8"}):
        with pytest.raises((pydantic.ValidationError, ValidationError)):
            send_twice(broker, "orders", body)


def test_a_session_needs_a_transaction():
    broker = RabbitBroker(middlewares=[protected()])

    @broker.subscriber("orders")
    async def charge(order: Order, given: Any = Depends(session)) -> None: ...  # noqa: B008

    with pytest.raises(ConfigurationError, match="TransactionalSqlChecker"):
        send_twice(broker, "orders")


@pytest.mark.parametrize(
    ("headers", "raw", "expected"),
    [
        ({}, SimpleNamespace(message_id="m"), "m"),
        ({}, SimpleNamespace(message_id=None), None),
        ({KEY_HEADER: "k"}, SimpleNamespace(message_id="m"), "k"),
        ({KEY_HEADER: b"k"}, SimpleNamespace(message_id="m"), b"k"),
        ({KEY_HEADER: ""}, SimpleNamespace(message_id="m"), "m"),
    ],
)
def test_the_id_is_never_one_that_fast_stream_made(headers, raw, expected):
    message = SimpleNamespace(headers=headers, raw_message=raw, message_id="made for this delivery")
    assert message_id(message) == expected
