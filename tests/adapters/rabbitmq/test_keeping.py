"""A policy `expires` deletes no queue of a worker that lives, and what is deleted all the same is said."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from idempotent import Message
from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.member import DEAD, failed
from tests.adapters.rabbitmq.rabbit import Rabbit, consumer_of, keep_working, receive
from tests.support.logs import logged
from tests.support.services import PrivateRabbitMq

EXPIRY_MS = 6000
# The broker looks for expired quorum queues at its ticks; those of classic queues are exact.
TICK_MS = 500


@contextmanager
def expiring(broker: PrivateRabbitMq):
    """Meanwhile each queue that nobody uses for `EXPIRY_MS` is deleted."""
    name, owner = '<<"/">>, <<"expiring">>', '<<"tests">>'
    broker.evaluate(
        f'rabbit_policy:set({name}, <<".*">>, [{{<<"expires">>, {EXPIRY_MS}}}], 0, <<"queues">>, {owner}).'
    )
    try:
        yield
    finally:
        broker.evaluate(f"rabbit_policy:delete({name}, {owner}).")


def deleted(caplog):
    return {record.queue: record for record in logged(caplog, "queue_deleted")}


@pytest.mark.slow
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_policy_expires_spares_what_waits_while_a_worker_lives(
    tuned_rabbitmq, monkeypatch, caplog, queue_type
):
    monkeypatch.setattr("idempotent.adapters.rabbitmq.adapter._LOOK_EVERY_S", 0.3)
    tuned_rabbitmq.tune("quorum_tick_interval", TICK_MS)
    rabbit = Rabbit(tuned_rabbitmq.url)
    queue, unused = rabbit.name(), rabbit.name("unused")
    with expiring(tuned_rabbitmq):
        rabbit.declare(unused, **{"x-queue-type": "quorum"})
        adapter = rabbit.adapter(queue_type=queue_type)
        adapter.open([consumer_of(queue)])
        rabbit.send(Message(queue, id="fails"), Message(queue, id="dead"))
        one, other = sorted(receive(adapter, 2), key=lambda delivery: delivery.message.id)
        adapter.settle(one, DEAD)
        adapter.settle(other, failed(15.0))
        (again,) = receive(adapter, within_s=120)
        assert again.message.id == "fails"
        assert not rabbit.exists(unused), "the policy deletes nothing here"
        letters = [letter.id for letter in rabbit.look(f"{queue}.dead")]
        adapter.close()
    if queue_type == "classic":
        assert (letters, deleted(caplog)) == (["dead"], {})
    else:
        # To fetch and return a dead letter could drop it before 4.3: quorum queues may have a delivery limit.
        assert letters == []
        assert deleted(caplog)[f"{queue}.dead"].count == 1
    rabbit.clean_up()


@pytest.mark.slow
def test_a_quorum_dead_letter_queue_expires_only_where_looks_would_drop_letters(
    rabbit, queue, monkeypatch, caplog
):
    monkeypatch.setattr("idempotent.adapters.rabbitmq.adapter._LOOK_EVERY_S", 0.3)
    limits = {"x-queue-type": "quorum", "x-expires": 2000, "x-delivery-limit": 1}
    letters = rabbit.declare(f"{queue}.dead", **limits)
    rabbit.send(Message(letters, id="dead"))
    adapter = rabbit.adapter()
    adapter.open([consumer_of(queue)])
    keep_working(adapter, 12.0)
    if rabbit.version >= (4, 3):
        assert [letter.id for letter in rabbit.look(letters)] == ["dead"]
    else:
        assert deleted(caplog)[letters].count == 1
    adapter.close()


def test_dead_letters_in_a_quorum_queue_are_looked_at_as_often_as_one_likes(rabbit):
    queue = rabbit.name()
    adapter = rabbit.adapter(queue_type="quorum")
    adapter.open([consumer_of(queue)])
    rabbit.send(Message(queue, id="dead"))
    adapter.settle(*receive(adapter), DEAD)
    until(lambda: (adapter.receive(0, 0.01), rabbit.depth(f"{queue}.dead"))[1], "a dead letter")
    adapter.close()
    for _ in range(25):  # the default limit is 20
        assert [letter.id for letter in rabbit.look(f"{queue}.dead")] == ["dead"]


def test_a_message_that_is_looked_at_often_comes_back_at_its_time(rabbit, queue, monkeypatch):
    monkeypatch.setattr("idempotent.adapters.rabbitmq.adapter._LOOK_EVERY_S", 0.02)
    adapter = rabbit.adapter()
    adapter.open([consumer_of(queue)])
    rabbit.send(Message(queue, id="1"))
    (delivery,) = receive(adapter)
    began = time.monotonic()
    adapter.settle(delivery, failed(2.0))
    (again,) = receive(adapter)
    assert time.monotonic() - began >= 2.0
    assert (again.message.id, again.message.redelivered) == ("1", False)
    adapter.close()


@pytest.mark.parametrize("which", ["retry.30000", "dead"])
def test_a_deleted_queue_is_said_with_the_number_of_its_messages(rabbit, queue, caplog, which):
    adapter = rabbit.adapter()
    adapter.open([consumer_of(queue)])
    rabbit.send(Message(queue, id="1"))
    (delivery,) = receive(adapter)
    adapter.settle(delivery, DEAD if which == "dead" else failed(30.0))
    # Looked here and not by the keeper's thread: while it is deleted a queue says that it is empty.
    keeper = adapter._keeper
    until(
        lambda: (adapter.receive(0, 0.01), keeper._look(), keeper._counts.get(f"{queue}.{which}"))[-1],
        "a look",
    )
    rabbit.delete(f"{queue}.{which}")
    until(lambda: (keeper._look(), f"{queue}.{which}" in deleted(caplog))[-1], "a line in the log")
    assert deleted(caplog)[f"{queue}.{which}"].count == 1
    adapter.close()


def test_a_deleted_queue_is_said_when_the_next_copy_makes_it_again(rabbit, queue, caplog):
    adapter = rabbit.adapter()
    adapter.open([consumer_of(queue)])
    for name in ("1", "2"):
        rabbit.send(Message(queue, id=name))
        (delivery,) = receive(adapter)
        adapter.settle(delivery, DEAD)
        until(lambda: (adapter.receive(0, 0.01), rabbit.depth(f"{queue}.dead"))[1], "a dead letter")
        assert deleted(caplog).keys() == ({f"{queue}.dead"} if name == "2" else set())
        rabbit.delete(f"{queue}.dead")
    adapter.close()
