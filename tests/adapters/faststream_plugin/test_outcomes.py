"""What FastStream does with each outcome: the table of docs/faststream.md, with a real worker on RabbitMQ."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from contextlib import closing, contextmanager

import pika
import pytest
from faststream import AckPolicy
from faststream.rabbit import RabbitBroker, RabbitQueue

from idempotent import Message
from idempotent.adapters.faststream import IdempotentMiddleware
from idempotent.checkers import MemoryChecker
from idempotent.testing.adapter_contract import until
from tests.adapters import plug_ins
from tests.adapters.faststream_plugin.conftest import settings_of
from tests.adapters.faststream_plugin.shop import GROUP, QUEUES, checker_of, replace, worker
from tests.adapters.plug_ins import Rows, proxied

DEADLINE_S = 30
row = Rows("faststream.md", "a message that is")


@pytest.fixture(scope="module")
def app(rabbit, redis_url, tmp_path_factory):
    """The settings of an application that runs."""
    settings = settings_of(rabbit, redis_url, tmp_path_factory.mktemp("faststream") / "ran")
    with worker(settings):
        yield settings
    left = {queue: rabbit.depth(f"{settings.queue}.{queue}") for queue in QUEUES}
    for queue in QUEUES:
        rabbit.delete(f"{settings.queue}.{queue}")
    assert left == dict.fromkeys(QUEUES, 0), "not all messages were settled"


@pytest.fixture
def order():
    return secrets.token_hex(6)


def send(rabbit, app, name, body, message_id, times=1):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    for _ in range(times):
        rabbit.send(Message(f"{app.queue}.{name}", body, id=message_id))


def seen(rabbit, app, queue, text):
    """The messages of a queue with this in their bodies."""
    return [each for each in rabbit.look(f"{app.queue}.{queue}") if text in each.body.decode()]


@contextmanager
def held(app, name, key, group_id=""):
    """Another process handles the message, and fails in the end."""
    group = f"{GROUP}/{group_id}" if group_id else GROUP
    with closing(checker_of(app)) as checker, plug_ins.held(checker, f"{app.queue}.{name}", key, group):
        yield


@row("new", "its output is published, and the message acknowledged")
@row("done before, with an output", "the stored output is published again, under the same id; acknowledged")
def test_a_duplicate_publishes_the_stored_output_under_the_same_id(rabbit, app, order):
    send(rabbit, app, "book", {"order": order}, order, times=3)
    outputs = until(lambda: found if len(found := seen(rabbit, app, "out", order)) == 3 else None, "outputs")
    assert {each.body for each in outputs} == {b'{"order":"%s","clerk":"alice"}' % order.encode()}
    assert {each.raw.properties.content_type for each in outputs} == {"application/json"}
    assert len({each.id for each in outputs}) == 1
    assert app.count("book", order) == 1
    send(rabbit, app, "book", {"order": order}, f"other {order}")
    until(lambda: len({each.id for each in seen(rabbit, app, "out", order)}) == 2, "another id")


def test_a_duplicate_sends_the_stored_reply_again(rabbit, app, order):
    name = rabbit.declare(rabbit.name())
    with rabbit.channel() as channel:
        properties = pika.BasicProperties(message_id=order, reply_to=name)
        for _ in range(2):
            rabbit.publish(channel, f"{app.queue}.book", json.dumps({"order": order}).encode(), properties)
    replies = until(lambda: found if len(found := rabbit.look(name)) == 2 else None, "replies")
    assert len({(each.id, each.body) for each in replies}) == 1
    assert app.count("book", order) == 1


def test_a_message_that_no_handler_is_to_get_passes_through(rabbit, app):
    name = rabbit.name()

    async def run():
        middleware = IdempotentMiddleware(MemoryChecker(), group=GROUP)
        broker = RabbitBroker(rabbit.url, middlewares=[middleware])
        waiting = broker.subscriber(name)
        async with broker:
            await broker.start()
            found = []
            for _ in range(2):
                await broker.publish("7", name, message_id="m")
                found.append(await waiting.get_one(timeout=DEADLINE_S))
            return [each.body for each in found]

    assert asyncio.run(run()) == [b"7"] * 2


def test_a_subscriber_that_is_refused_stops_and_its_message_returns(rabbit, caplog):
    name = rabbit.declare(rabbit.name())

    async def run():
        middleware = IdempotentMiddleware(MemoryChecker(), group=GROUP)
        broker = RabbitBroker(rabbit.url, middlewares=[middleware])
        ran = []

        @broker.subscriber(RabbitQueue(name, durable=True), ack_policy=AckPolicy.MANUAL)
        async def handle(body: str) -> None:
            ran.append(body)

        async with broker:
            await broker.start()
            await broker.publish("7", name)
            while broker.subscribers[0].running:  # noqa: ASYNC110 - FastStream has no event for it
                await asyncio.sleep(0.05)
        return ran

    assert asyncio.run(asyncio.wait_for(run(), DEADLINE_S)) == []
    until(lambda: rabbit.depth(name) == 1, "the message")
    assert "subscriber_refused" in [getattr(line, "event", "") for line in caplog.records]


@row("done before, without an output", "acknowledged; nothing is published")
def test_a_duplicate_without_an_output_is_acknowledged(rabbit, app, order):
    send(rabbit, app, "note", order, order, times=3)
    send(rabbit, app, "note", f"last {order}", f"last {order}")
    until(lambda: app.count("note", f"last {order}"), "the last message")
    assert app.count("note", order) == 1
    assert not seen(rabbit, app, "dead", order)


@row(
    "in use: another worker handles it",
    "held for up to `hold_s`, then returned to RabbitMQ; on Kafka held until the key is free",
)
def test_a_message_whose_key_is_in_use_comes_again(rabbit, app, order):
    with held(app, "book", order):
        send(rabbit, app, "book", {"order": order}, order)
        threading.Event().wait(3 * app.hold_s)
        assert not app.count("book", order)
    until(lambda: seen(rabbit, app, "out", order), "an output")
    assert app.count("book", order) == 1
    assert not seen(rabbit, app, "dead", order)


@row("raising an error", "its own error: `ack_policy` decides; the key is free")
def test_a_failed_message_is_left_to_the_policy_and_may_run_again(rabbit, app, order):
    for times in (1, 2):
        send(rabbit, app, "refuse", order, order)
        until(lambda times=times: len(seen(rabbit, app, "dead", order)) == times, "a dead letter")
        assert app.count("refuse", order) == times
    send(rabbit, app, "nack", order, order)
    until(lambda: seen(rabbit, app, "out", order), "an output")
    assert app.count("nack", order) == 2


@row(
    "answered with `NackMessage`, `RejectMessage` or `SkipMessage`",
    "what FastStream does with it; no failed attempt, the key is free",
)
def test_a_message_that_the_handler_rejects_may_run_again(rabbit, app, order):
    body = f"RejectMessage {order}"
    for times in (1, 2):
        send(rabbit, app, "answer", body, order)
        until(lambda times=times: len(seen(rabbit, app, "dead", order)) == times, "a dead letter")
        assert app.count("answer", body) == times


@row("answered with `AckMessage`", "acknowledged, without an output; the key is done")
def test_a_message_that_the_handler_acknowledges_is_done(rabbit, app, order):
    body = f"AckMessage {order}"
    send(rabbit, app, "answer", body, order, times=2)
    send(rabbit, app, "answer", f"AckMessage last {order}", f"last {order}")
    until(lambda: app.count("answer", f"AckMessage last {order}"), "the last message")
    assert app.count("answer", body) == 1
    assert not seen(rabbit, app, "out", order)
    assert not seen(rabbit, app, "dead", order)


@row(
    "not what the parameters say, or not decoded",
    "rejected, before the handler runs; the log names the field; the key is free",
)
@pytest.mark.parametrize("body", ['{"seconds": "%s"}', '{"order": "%s", "seconds": "long"}'])
def test_a_body_that_pydantic_refuses_is_rejected(rabbit, app, order, body):
    send(rabbit, app, "book", (body % order).encode(), order)
    until(lambda: seen(rabbit, app, "dead", order), "a dead letter")
    send(rabbit, app, "book", {"order": order}, order)
    until(lambda: seen(rabbit, app, "out", order), "an output")
    assert app.count("book", order) == 1


@row("without a key", "rejected")
def test_a_message_without_a_key_is_rejected(rabbit, app, order):
    send(rabbit, app, "book", {"order": order}, None)
    until(lambda: seen(rabbit, app, "dead", order), "a dead letter")
    assert not app.count("book", order)


@row(
    'dead, or its effect is unknown (`on_expired_lease="park"`)', "rejected, with the log line `message_dead`"
)
def test_a_dead_message_is_rejected(rabbit, app, order):
    with closing(checker_of(app)) as checker:
        plug_ins.bury(checker, f"{app.queue}.book", order, GROUP)
    send(rabbit, app, "book", {"order": order}, order)
    until(lambda: seen(rabbit, app, "dead", order), "a dead letter")
    assert not app.count("book", order)


@pytest.mark.slow
@row("received while the store does not answer", "the same; a message is never handled without protection")
def test_while_the_store_is_away_a_message_comes_again(rabbit, settings, redis_url, order):
    with proxied(redis_url) as (proxy, behind):
        settings = replace(settings, url=behind)
        with worker(settings):
            send(rabbit, settings, "book", {"order": "warm"}, "warm")
            until(lambda: seen(rabbit, settings, "out", "warm"), "an output")
            proxy.refuse()
            proxy.cut()
            send(rabbit, settings, "book", {"order": order}, order)
            threading.Event().wait(3)
            assert not settings.count("book", order)
            proxy.recover()
            until(lambda: seen(rabbit, settings, "out", order), "an output")
            assert settings.count("book", order) == 1
            assert not seen(rabbit, settings, "dead", order)


def test_the_page_has_these_rows():
    assert row.on_page() == row.proved
