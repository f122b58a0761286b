"""Copies: what they keep of a message, and what happens when the broker does not take them."""

from datetime import UTC, datetime

import pika
import pika.exceptions
import pytest

from idempotent import Message
from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.member import ACK, DEAD, failed
from tests.adapters.rabbitmq.rabbit import hang_up, keep_working, receive

# Identity and properties


@pytest.mark.parametrize(
    ("key", "message_id", "id"),
    [
        ("k", "m", "k"),
        (None, "m", "m"),
        ("k", None, "k"),
        (b"\xff\0", None, b"\xff\0"),
        (7, None, "7"),
        (None, None, None),
        (None, "", None),
    ],
)
def test_the_id_is_the_key_header_or_the_message_id(rabbit, queue, opened, key, message_id, id):
    headers = {} if key is None else {"x-idempotent-key": key}
    with rabbit.channel() as channel:
        rabbit.publish(channel, queue, b"", pika.BasicProperties(message_id=message_id, headers=headers))
    (delivery,) = receive(opened(queue))
    assert delivery.message.id == id


def test_ids_of_any_kind_can_be_published(queue, opened):
    adapter = opened(queue)
    ids = ["plain", "x" * 1000, b"\xff\0", "\N{SNOWMAN}" * 200]
    for name in ids:
        adapter.publish(Message(queue, id=name))
    assert [delivery.message.id for delivery in receive(adapter, 4)] == ids


def test_a_number_that_the_client_cannot_write_is_sent_as_text(queue, opened):
    adapter = opened(queue)
    adapter.publish(Message(queue, id="1", headers={"ratio": 0.5, "deep": [{"ratio": 1e300}]}))
    (delivery,) = receive(adapter)
    assert dict(delivery.message.headers) == {"ratio": "0.5", "deep": [{"ratio": "1e+300"}]}


def test_a_copy_keeps_what_the_producer_said(rabbit, queue, opened):
    when = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    headers = {
        "colour": "red",
        "count": 7,
        "list": [1, {"a": b"\xff"}],
        "no": None,
        "yes": True,
    }
    with rabbit.channel() as channel:
        properties = pika.BasicProperties(
            message_id="1",
            content_type="application/json",
            correlation_id="c",
            reply_to="r",
            priority=3,
            timestamp=when,
            type="t",
            app_id="a",
            headers=headers,
        )
        rabbit.publish(channel, queue, b"\xff\0", properties)
    adapter = opened(queue)
    (first,) = receive(adapter)
    adapter.settle(first, failed())
    (again,) = receive(adapter)
    kept = again.message.raw.properties
    assert (kept.message_id, kept.content_type, kept.correlation_id) == ("1", "application/json", "c")
    assert (kept.reply_to, kept.priority, kept.timestamp, kept.type, kept.app_id) == ("r", 3, when, "t", "a")
    assert again.message.body == b"\xff\0"
    assert {name: again.message.headers[name] for name in headers} == headers


def test_a_copy_leaves_behind_what_would_harm_it(rabbit, queue, opened):
    elsewhere = rabbit.declare(rabbit.name("elsewhere"))
    with rabbit.channel() as channel:
        properties = pika.BasicProperties(
            message_id="1",
            user_id=pika.URLParameters(rabbit.url).credentials.username,
            expiration="60000",
            delivery_mode=1,
            headers={"CC": [elsewhere]},
        )
        rabbit.publish(channel, queue, b"", properties)
    assert rabbit.depth(elsewhere) == 1
    adapter = opened(queue)
    (delivery,) = receive(adapter)
    assert delivery.message.raw.properties.expiration == "60000"
    adapter.settle(delivery, DEAD)
    (letter,) = until(lambda: rabbit.look(f"{queue}.dead"), "a dead letter")
    kept = letter.raw.properties
    assert (kept.user_id, kept.expiration, kept.delivery_mode) == (None, None, 2)
    assert rabbit.depth(elsewhere) == 1


def test_copies_are_counted_by_a_header_and_the_brokers_own_count_is_there_to_see(rabbit, queue, opened):
    adapter = opened(queue)
    rabbit.send(Message(queue, id="1"))
    for attempt in range(3):
        (delivery,) = receive(adapter)
        message = delivery.message
        assert message.id == "1"
        headers = message.raw.properties.headers
        assert headers.get("x-idempotent-attempt", "0") == str(attempt)
        if attempt:
            assert headers["x-idempotent-origin"] == queue
            (death,) = headers["x-death"]
            assert (death["queue"], death["reason"], death["count"]) == (f"{queue}.retry.100", "expired", 1)
        adapter.settle(delivery, failed())


def test_a_quorum_queues_delivery_count_is_in_raw(rabbit, opened):
    queue = rabbit.declare(rabbit.name(), **{"x-queue-type": "quorum"})
    adapter = opened(queue)
    rabbit.send(Message(queue, id="1"))
    (delivery,) = receive(adapter)
    adapter.requeue(delivery)
    (again,) = receive(adapter)
    assert again.message.redelivered
    # From 4.3 on what is returned is counted under another name.
    counted = again.message.raw.properties.headers.keys() & {"x-delivery-count", "x-acquired-count"}
    assert [again.message.raw.properties.headers[name] >= 1 for name in counted] == [True]


# Copies that the broker does not take


def test_a_deleted_dead_letter_queue_is_made_again(rabbit, queue, opened):
    adapter = opened(queue)
    rabbit.send(Message(queue, id="1"))
    (delivery,) = receive(adapter)
    rabbit.delete(f"{queue}.dead")
    adapter.settle(delivery, DEAD)
    (letter,) = until(lambda: rabbit.look(f"{queue}.dead"), "a dead letter")
    assert letter.id == "1"


@pytest.mark.parametrize("result", [DEAD, failed()], ids=["dead", "failed"])
@pytest.mark.parametrize("ack", ["manual", "batched"])
def test_a_message_whose_copy_has_nowhere_to_go_is_not_acknowledged(rabbit, queue, opened, result, ack):
    rabbit.declare_all(queue)
    adapter = opened(queue, declare=False, ack=ack)
    rabbit.delete(f"{queue}.dead")
    rabbit.send(Message(queue, id="1"))
    (delivery,) = receive(adapter)
    adapter.settle(delivery, result)
    keep_working(adapter, 0.5)
    adapter.close()
    until(lambda: rabbit.depth(queue) == 1, "the original")


@pytest.mark.slow
def test_a_refused_copy_is_made_as_soon_as_it_is_taken(rabbit, queue, opened):
    dead = rabbit.declare(f"{queue}.dead", **{"x-max-length": 1, "x-overflow": "reject-publish"})
    adapter = opened(queue)
    rabbit.send(Message(dead, id="in the way"), Message(queue, id="1"))
    (delivery,) = receive(adapter)
    adapter.settle(delivery, DEAD)
    adapter.settle(delivery, ACK)
    assert adapter.stale_settlements == 1
    keep_working(adapter, 0.3)
    assert [letter.id for letter in rabbit.look(dead)] == ["in the way"]
    with rabbit.channel() as channel:
        channel.queue_purge(dead)
    keep_working(adapter, 2.5)
    assert [letter.id for letter in rabbit.look(dead)] == ["1"]
    adapter.close()
    assert rabbit.depth(queue) == 0


@pytest.mark.slow
def test_a_message_whose_delay_queue_is_full_stays_where_it_is(rabbit, queue, opened):
    delay = rabbit.declare(f"{queue}.retry.100", **{"x-max-length": 0, "x-overflow": "reject-publish"})
    adapter = opened(queue)
    rabbit.send(Message(queue, id="1"))
    adapter.settle(receive(adapter)[0], failed(0.1))
    keep_working(adapter, 0.5)
    assert rabbit.depth(delay) == 0
    hang_up(adapter)
    (again,) = receive(adapter)
    assert (again.message.id, again.message.redelivered) == ("1", True)


@pytest.mark.slow
def test_after_a_lost_connection_a_refused_copy_is_the_brokers_affair_again(rabbit, queue, opened):
    dead = rabbit.declare(f"{queue}.dead", **{"x-max-length": 1, "x-overflow": "reject-publish"})
    adapter = opened(queue)
    rabbit.send(Message(dead, id="in the way"), Message(queue, id="1"))
    adapter.settle(receive(adapter)[0], DEAD)
    hang_up(adapter)
    (again,) = receive(adapter)
    assert again.message.redelivered
    with rabbit.channel() as channel:
        channel.queue_purge(dead)
    keep_working(adapter, 2.5)
    assert rabbit.look(dead) == []
    adapter.settle(again, DEAD)
    (letter,) = until(lambda: rabbit.look(dead), "a dead letter")
    assert letter.id == "1"
