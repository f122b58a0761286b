"""A loop over pika that its user wrote: its messages are the adapter's, and each result settles its delivery."""

# The fixtures of the adapter are parameters here.
# ruff: noqa: F811

from __future__ import annotations

import time
from datetime import UTC, datetime

import pika
import pytest

from idempotent import Message, Outcome, Result
from idempotent.adapters.rabbitmq import from_pika, settle
from tests.adapters.rabbitmq.conftest import opened, queue, rabbit  # noqa: F401
from tests.adapters.rabbitmq.rabbit import receive

AGAIN = (Outcome.FAILED, Outcome.IN_PROGRESS, Outcome.UNAVAILABLE)
DEADLINE_S = 20


def same(one: Message, other: Message, *but: str) -> bool:
    names = {"subject", "body", "id", "headers", "redelivered", "key", "timestamp"} - set(but)
    return all(getattr(one, name) == getattr(other, name) for name in names)


def got(channel, queue):
    """A delivery, when one is there."""
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        method, properties, body = channel.basic_get(queue)
        if method is not None:
            return method, properties, body
        channel.connection.sleep(0.05)
    raise AssertionError("no delivery")


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"message_id": "7"},
        {"message_id": "7", "headers": {"x-idempotent-key": "8", "tenant": "a", "count": 3}},
        {"headers": {"x-idempotent-key": 9}, "timestamp": int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())},
    ],
)
def test_the_message_is_the_adapters(rabbit, queue, opened, properties):
    with rabbit.channel() as channel:
        rabbit.publish(channel, queue, b"body", pika.BasicProperties(**properties))
        method, given, body = got(channel, queue)
        mine = from_pika(queue, method, given, body)
        assert mine.body == b"body"
        assert mine.from_broker
        settle(Result(Outcome.PROCESSED), channel, method)
        rabbit.publish(channel, queue, b"body", pika.BasicProperties(**properties))
    (delivery,) = receive(opened(queue))
    assert same(mine, delivery.message)


def test_a_delayed_copy_of_the_adapter_is_the_message_that_failed(rabbit, queue, opened):
    rabbit.send(Message(queue, b"body", id="7", headers={"tenant": "a"}))
    adapter = opened(queue)
    (delivery,) = receive(adapter)
    adapter.settle(delivery, Result(Outcome.FAILED, retry_after_s=0.1))
    (copy,) = receive(adapter)
    adapter.close()
    with rabbit.channel() as channel:
        method, given, body = got(channel, f"{queue}.retry.due")
        mine = from_pika(queue, method, given, body)
    assert (mine.id, mine.body, dict(mine.headers)) == ("7", b"body", {"tenant": "a"})
    assert same(mine, copy.message, "redelivered")


@pytest.mark.parametrize("outcome", [Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.IGNORED])
def test_what_is_done_is_acknowledged(rabbit, queue, outcome):
    with rabbit.channel() as channel:
        rabbit.publish(channel, queue)
        settle(Result(outcome), channel, got(channel, queue)[0])
    assert rabbit.depth(queue) == 0


@pytest.mark.parametrize("outcome", [Outcome.DEAD, Outcome.REJECTED])
def test_what_never_succeeds_goes_to_the_dead_letter_exchange(rabbit, outcome):
    dead = rabbit.declare(rabbit.name())
    there = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = rabbit.declare(rabbit.name(), **there)
    with rabbit.channel() as channel:
        rabbit.publish(channel, queue, b"body")
        settle(Result(outcome), channel, got(channel, queue)[0])
        assert got(channel, dead)[2] == b"body"
    assert rabbit.depth(queue) == 0


@pytest.mark.parametrize("outcome", AGAIN)
def test_what_is_not_done_comes_again_after_a_pause(rabbit, queue, outcome):
    with rabbit.channel() as channel:
        rabbit.publish(channel, queue)
        began = time.monotonic()
        settle(Result(outcome, retry_after_s=0.7), channel, got(channel, queue)[0])
        again = got(channel, queue)[0]
        assert again.redelivered
        assert time.monotonic() - began >= 0.7


def test_without_a_hint_it_comes_again_after_a_second_and_others_go_on_meanwhile(rabbit, queue):
    seen = []
    with rabbit.channel() as channel:
        for body in (b"held", b"done"):
            rabbit.publish(channel, queue, body)

        def on_message(channel, method, properties, body):
            message = from_pika(queue, method, properties, body)
            seen.append((message.body, time.monotonic()))
            first = message.body == b"held" and not message.redelivered
            settle(Result(Outcome.IN_PROGRESS if first else Outcome.PROCESSED), channel, method)
            if len(seen) == 3:
                channel.stop_consuming()

        channel.basic_qos(prefetch_count=10)
        channel.basic_consume(queue, on_message)
        channel.start_consuming()
    assert [body for body, _ in seen] == [b"held", b"done", b"held"]
    assert seen[2][1] - seen[0][1] >= 1
    assert rabbit.depth(queue) == 0


def test_a_channel_that_has_closed_meanwhile_is_left_alone(rabbit, queue):
    with rabbit.channel() as channel:
        rabbit.publish(channel, queue)
        settle(Result(Outcome.FAILED, retry_after_s=0.1), channel, got(channel, queue)[0])
        channel.close()
        channel.connection.sleep(0.3)
        assert got(channel.connection.channel(), queue)[0].redelivered
