"""aio-pika, whose producers give an id of their own to each publishing."""

import asyncio
import os
import subprocess
import sys
import time

import aio_pika
import pytest

from idempotent import Message, Outcome
from idempotent.testing.adapter_contract import until
from tests.clients.service import TIMEOUT_S
from tests.project.house import ROOT

BODY = b'{"cents": 100}'
HEADERS = {"event": "order-7", "tries": 3, "deep": {"flags": [True, None]}, "bytes": bytearray(b"\xff")}


def connected(url, act):
    """Run `act(channel)`, which is awaited."""

    async def run():
        async with await aio_pika.connect_robust(url) as connection:
            return await act(await connection.channel())

    return asyncio.run(run())


def publish(url, queue, times=1, **properties):
    async def act(channel):
        for _ in range(times):
            message = aio_pika.Message(BODY, **properties)
            await channel.default_exchange.publish(message, queue)

    connected(url, act)


def read(url, queue):
    async def act(channel):
        source = await channel.get_queue(queue)
        message = await source.get(timeout=TIMEOUT_S, no_ack=True)
        return message.body, message

    return connected(url, act)


def test_without_an_id_each_publishing_is_another_message(rabbit, queue, serve_queue):
    publish(rabbit.url, queue, times=2)
    service = serve_queue()
    assert service.work(2) == [Outcome.PROCESSED] * 2
    first, second = service.effects
    assert len(first.id) == len(second.id) == 32
    assert first.id != second.id


@pytest.mark.parametrize(
    ("properties", "options"),
    [
        ({"message_id": "order-7"}, {}),
        ({"headers": HEADERS}, {"key": lambda message: message.headers["event"]}),
    ],
    ids=["message_id", "key"],
)
def test_an_id_of_the_producer_makes_two_publishings_one_message(
    rabbit, queue, serve_queue, properties, options
):
    publish(rabbit.url, queue, times=2, **properties)
    service = serve_queue(**options)
    assert service.work(2) == [Outcome.PROCESSED, Outcome.DUPLICATE]
    (effect,) = service.effects
    assert effect.body == BODY
    assert effect.headers == properties.get("headers", {})


def test_aio_pika_reads_a_dead_letter_and_what_is_redriven_is_handled(rabbit, queue, serve_queue):
    publish(rabbit.url, queue, message_id="order-7", headers=HEADERS, content_type="application/json")
    service = serve_queue()
    service.bury()
    service.redrive()
    assert [effect.id for effect in service.effects] == ["order-7"]
    publish(rabbit.url, queue, message_id="order-8", headers=HEADERS, content_type="application/json")
    service.bury()
    body, letter = read(rabbit.url, f"{queue}.dead")
    assert (body, letter.content_type, letter.message_id) == (BODY, "application/json", "order-8")
    assert {name: letter.headers[name] for name in HEADERS} == HEADERS
    assert letter.headers["x-idempotent-key"] == "order-8"
    assert letter.headers["x-idempotent-reason"] == "ValueError: no such customer: Zoë"


def test_a_message_is_kept_in_memory_only_unless_the_producer_says_otherwise(rabbit, queue, serve_queue):
    publish(rabbit.url, queue)
    publish(rabbit.url, queue, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    service = serve_queue()
    service.work(2)
    assert [effect.raw.properties.delivery_mode for effect in service.effects] == [1, 2]


@pytest.mark.slow
def test_the_example_sends_each_mail_once_from_a_callback(rabbit, tmp_path):
    queue = rabbit.declare("mail")
    for _ in range(2):
        publish(rabbit.url, queue, message_id="m-1")
    rabbit.send(Message(queue))  # rejected: it has no id
    publish(rabbit.url, queue, message_id="m-2")
    sent = []

    def empties_the_queue():
        """The broker counts no messages that are not acknowledged, but a kill returns them."""
        program = subprocess.Popen(
            [sys.executable, "-W", "error", str(ROOT / "examples" / "aio_pika_service.py")],
            cwd=tmp_path,
            env={**os.environ, "RABBITMQ_URL": rabbit.url},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            until(lambda: rabbit.depth(queue) == 0, "nothing ready")
            time.sleep(2.0)
            assert program.poll() is None, "the example ended by itself"
        finally:
            program.kill()
            sent.extend(program.communicate()[0].splitlines())
        until(lambda: rabbit.consumers(queue) == 0, "no consumer")
        return rabbit.depth(queue) == 0

    # A duplicate that met its original in progress still waits when the kill comes: the next run answers it.
    until(empties_the_queue, "an empty queue after a kill")
    assert sorted(sent) == ["sent m-1", "sent m-2"]
