"""An output that is published again, in the test brokers of FastStream."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from faststream import AckPolicy, Response
from faststream.confluent import KafkaBroker, KafkaResponse, TestKafkaBroker
from faststream.rabbit import RabbitBroker, RabbitMessage, RabbitQueue, RabbitResponse, TestRabbitBroker

from idempotent import ConfigurationError
from idempotent.adapters.copies import KEY_HEADER
from idempotent.codecs import JsonCodec
from tests.adapters.faststream_plugin.brokers import ORDER, Order, Reversed, protected, seeing, send_twice


@pytest.mark.parametrize(
    "answer",
    [
        "text",
        b"bytes",
        None,
        {"at": [1, 2.5]},
        Order(order="7"),
        Response("text", headers={"a": "b"}, correlation_id="c"),
        RabbitResponse("text", headers={"a": 1}, priority=3, message_id="own", exchange="shop", timeout=5.0),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_a_copy_of_an_output_is_the_same(answer):
    seen, correlation_id = seeing(), getattr(answer, "correlation_id", None)
    broker = RabbitBroker(middlewares=[protected(), seen])
    runs = []

    @broker.subscriber("orders")
    @broker.publisher("out", headers={"from": "shop"}, persist=True)
    async def charge(order: Order):
        runs.append(order)
        return answer

    @broker.subscriber(RabbitQueue("of shop", routing_key="out"), "shop")
    @broker.subscriber("out")
    async def out(message: RabbitMessage) -> None:
        bodies.append((message.body, message.content_type, message.headers, message.raw_message.message_id))

    bodies: list[Any] = []
    send_twice(broker, "orders")
    first, copy = seen.commands
    assert len(runs) == 1
    first.message_options.pop("content_type", None)
    assert (copy.message_options.pop("content_type", None) or "") == (bodies[0][1] or "")
    shown = [
        (each.exchange.name, each.destination, each.headers, each.message_options, each.publish_options)
        for each in (first, copy)
    ]
    assert shown[0] == shown[1]
    assert len({first.message_options["message_id"]}) == 1
    if correlation_id:
        assert first.correlation_id == copy.correlation_id == "c"
    # The next consumer drops the copy.
    assert len(bodies) == 1


def test_a_copy_on_kafka_has_the_body_the_key_and_the_content_type():
    seen = seeing()
    broker = KafkaBroker(middlewares=[protected(key=lambda message: message.headers["id"]), seen])

    @broker.subscriber("orders", group_id="g", ack_policy=AckPolicy.NACK_ON_ERROR)
    @broker.publisher("out")
    async def charge(order: Order):
        return KafkaResponse(order, key=b"\xff7", headers={"a": "b"})

    async def run() -> None:
        async with TestKafkaBroker(broker) as test:
            for _ in range(2):
                await test.publish(ORDER, "orders", headers={"id": "m"})

    asyncio.run(run())
    first, copy = seen.commands
    assert (copy.key, copy.headers["a"]) == (first.key, "b") == (b"\xff7", "b")
    assert copy.headers[KEY_HEADER] == first.headers[KEY_HEADER]
    assert (copy.body, copy.headers["content-type"]) == (b'{"order":"7"}', "application/json")


def test_the_publishers_of_a_test_broker_see_each_publication():
    middleware = protected()
    brokers: Any = (
        (KafkaBroker(middlewares=[middleware]), TestKafkaBroker, {"group_id": "g"}),
        (
            RabbitBroker(middlewares=[middleware]),
            TestRabbitBroker,
            {},
        ),
    )

    async def run(broker: Any, test_broker: Any, options: Any) -> None:
        publisher = broker.publisher("out")

        @broker.subscriber("orders", ack_policy=AckPolicy.NACK_ON_ERROR, **options)
        @publisher
        async def charge(order: Order) -> str:
            return order.order

        async with test_broker(broker) as test:
            middleware.check(broker)
            for _ in range(2):
                await test.publish(ORDER, "orders", headers={KEY_HEADER: "m"})
            assert publisher.mock.call_count == 2

    for each in brokers:
        asyncio.run(run(*each))


def test_outputs_go_to_each_destination_with_an_id_of_its_own():
    seen = seeing()
    broker = RabbitBroker(middlewares=[protected(), seen])

    @broker.subscriber("orders")
    @broker.publisher("a")
    @broker.publisher("b")
    async def charge(order: Order) -> str:
        return order.order

    send_twice(broker, "orders")
    ids = [each.message_options["message_id"] for each in seen.commands]
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2


@pytest.mark.parametrize(
    "answer", [RabbitResponse("7", timestamp=datetime(2026, 1, 1, tzinfo=UTC)), object(), "x" * 1_000_000]
)
def test_an_output_that_cannot_be_stored_fails_the_handler(answer):
    seen = seeing()
    broker = RabbitBroker(middlewares=[protected(), seen])
    runs = []

    @broker.subscriber("orders")
    @broker.publisher("out")
    async def charge(order: Order):
        runs.append(order)
        return answer

    for times in (1, 2):
        with pytest.raises(ConfigurationError, match="stored"):
            send_twice(broker, "orders")
        assert len(runs) == times
    assert not seen.commands


def test_a_codec_stores_what_the_broker_encodes_in_its_own_way():
    seen = seeing()
    broker = RabbitBroker(middlewares=[protected(codec=JsonCodec()), seen], codec=Reversed())

    @broker.subscriber("orders")
    @broker.publisher("out")
    async def charge(order: dict[str, str]) -> list[str]:
        return list(order)

    send_twice(broker, "orders")
    assert [each.body for each in seen.commands] == [["order"]] * 2
