"""kombu, the client below Celery."""

import json

import kombu
import pytest

from idempotent import Outcome
from tests.clients.service import TIMEOUT_S

ORDER = {"cents": 100, "name": "Zoë"}


@pytest.fixture
def connection(rabbit):
    with kombu.Connection(rabbit.url) as connection:
        yield connection


def publish(connection, queue, **options):
    connection.Producer().publish(ORDER, routing_key=queue, retry=True, **options)


def consume(connection, queue):
    """One message, as a consumer of kombu reads it: its body decoded, and the message."""
    found = []

    def on_message(body, message):
        found.append((body, message))
        message.ack()

    source = kombu.Queue(queue, no_declare=True)
    with connection.channel() as channel:  # which gives back, when it is closed, what it had fetched ahead
        kombu.Consumer(channel, source, callbacks=[on_message], accept=["json", "pickle"]).consume()
        while not found:
            connection.drain_events(timeout=TIMEOUT_S)
    return found[0]


def test_a_message_without_an_id_is_rejected(connection, queue, serve_queue):
    publish(connection, queue)
    service = serve_queue()
    assert service.work(1) == [Outcome.REJECTED]
    assert consume(connection, f"{queue}.dead")[0] == ORDER


def test_the_message_id_is_the_key_and_the_body_is_json(connection, queue, serve_queue):
    for _ in range(2):
        publish(connection, queue, message_id="order-7", headers={"tries": 3, "tenant": "blue"})
    service = serve_queue()
    assert service.work(2) == [Outcome.PROCESSED, Outcome.DUPLICATE]
    (effect,) = service.effects
    assert (effect.id, effect.json()) == ("order-7", ORDER)
    assert effect.headers == {"tries": 3, "tenant": "blue"}
    assert effect.raw.properties.delivery_mode == 2


@pytest.mark.parametrize("options", [{}, {"serializer": "pickle"}, {"compression": "zlib"}], ids=repr)
def test_kombu_reads_a_dead_letter_and_what_is_redriven_is_handled(connection, queue, serve_queue, options):
    service = serve_queue()
    for number in range(2):
        publish(connection, queue, message_id=f"order-{number}", **options)
    service.bury(2)
    body, letter = consume(connection, f"{queue}.dead")
    assert body == ORDER
    assert letter.properties["message_id"] == "order-0"
    assert letter.headers["x-idempotent-key"] == "order-0"
    assert letter.headers["x-idempotent-reason"] == "ValueError: no such customer: Zoë"
    service.redrive()
    assert [effect.id for effect in service.effects] == ["order-1"]


def test_a_queue_that_the_adapter_made_can_be_declared_by_kombu(connection, rabbit, serve_queue, queue):
    publish(connection, queue, message_id="order-7")
    serve_queue().bury()
    kombu.Queue(f"{queue}.dead", channel=connection.default_channel).declare()
    assert consume(connection, f"{queue}.dead")[0] == ORDER


def test_a_compressed_body_comes_as_it_was_sent(connection, queue, serve_queue):
    publish(connection, queue, message_id="order-7", compression="zlib")
    service = serve_queue()
    service.work(1)
    (effect,) = service.effects
    assert effect.headers["compression"] == "application/x-gzip"
    text = kombu.compression.decompress(effect.body, effect.headers["compression"])
    assert json.loads(text) == ORDER
