"""Queues, channels, and what is sent ahead."""

import threading
import time

import pytest

from idempotent import Message
from idempotent.adapters import adapter_from_url
from idempotent.adapters.rabbitmq import AckMode, topology
from idempotent.adapters.rabbitmq.topology import Topology
from idempotent.errors import AdapterError
from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.member import ACK, DEAD, failed
from tests.adapters.rabbitmq.rabbit import consumer_of, keep_working, numbered, receive

# Queues


@pytest.mark.parametrize(
    ("delay_s", "ms"),
    [
        (0, 100),
        (0.1, 100),
        (0.11, 250),
        (1, 1000),
        (1.01, 2000),
        (61, 120_000),
        (86_400, 86_400_000),
        (1e9, 2_592_000_000),
    ],
)
def test_delays_share_a_few_queues(delay_s, ms):
    assert Topology.delay("q", delay_s) == (f"q.retry.{ms}", ms)


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_what_is_missing_is_declared(rabbit, opened, queue_type):
    queue = rabbit.name()
    adapter = opened(queue, queue_type=queue_type)
    adapter.publish(Message(queue, id="1"))
    (delivery,) = receive(adapter)
    adapter.settle(delivery, failed())
    (again,) = receive(adapter)
    adapter.settle(again, DEAD)
    assert [letter.id for letter in rabbit.look(f"{queue}.dead")] == ["1"]
    assert rabbit.exists(f"{queue}.retry.100")
    rabbit.delete(f"{queue}.retry.100")


def test_what_exists_is_used_as_it_is(rabbit, opened):
    queue = rabbit.declare(rabbit.name(), **{"x-max-length": 7})
    adapter = opened(queue, queue_type="quorum")
    rabbit.send(Message(queue, id="1"))
    assert receive(adapter)


def test_a_dead_letter_queue_can_be_shared(rabbit, opened):
    one, two, dead = (rabbit.name(name) for name in ("one", "two", "all-dead"))
    adapter = opened(one, two, dead_letter_queue=dead)
    rabbit.send(Message(one, id="1"), Message(two, id="2"))
    for delivery in receive(adapter, 2):
        adapter.settle(delivery, DEAD)
    letters = rabbit.look(dead)
    assert {(letter.id, letter.headers["x-idempotent-origin"]) for letter in letters} == {
        ("1", one),
        ("2", two),
    }
    assert not rabbit.exists(f"{one}.dead")


@pytest.mark.slow
def test_an_unused_delay_queue_goes_but_never_with_messages(rabbit, queue, opened, monkeypatch):
    monkeypatch.setattr(topology, "UNUSED_MS", 1500)
    monkeypatch.setattr("idempotent.adapters.rabbitmq.publisher.ASK_AGAIN_S", 0.5)
    adapter = opened(queue)
    for number in range(10):
        rabbit.send(Message(queue, id=str(number)))
    came = set()
    deadline = time.monotonic() + 15
    while len(came) < 10:
        assert time.monotonic() < deadline, came
        for delivery in adapter.receive(1, 0.1):
            if delivery.message.headers.get("x-idempotent-attempt"):
                came.add(delivery.message.id)
                adapter.settle(delivery, ACK)
            else:
                adapter.settle(delivery, failed(2.0))
                time.sleep(0.4)
    name = f"{queue}.retry.2000"
    assert rabbit.exists(name)
    deadline = time.monotonic() + 20
    while rabbit.exists(name):
        assert time.monotonic() < deadline
        # Looking renews the lease, so look seldom.
        time.sleep(4.5)
    rabbit.send(Message(queue, id="late"))
    (delivery,) = receive(adapter)
    adapter.settle(delivery, failed(2.0))
    (again,) = receive(adapter)
    assert again.message.id == "late"


# Consuming


def test_a_deleted_queue_is_made_again_and_consumed(rabbit, queue, opened):
    adapter = opened(queue)
    keep_working(adapter, 0.2)
    rabbit.delete(queue)
    until(lambda: (keep_working(adapter, 0.1), rabbit.exists(queue))[1], "the queue")
    rabbit.send(Message(queue, id="1"))
    assert receive(adapter)


def test_a_deleted_queue_that_may_not_be_made_again_is_an_error(rabbit, queue, opened):
    rabbit.declare(f"{queue}.dead")
    adapter = opened(queue, declare=False)
    keep_working(adapter, 0.2)
    rabbit.delete(queue)
    with pytest.raises(AdapterError, match="queue does not exist"):
        keep_working(adapter, 10)


def test_another_thread_cannot_use_it(rabbit, queue, opened):
    adapter = opened(queue)
    rabbit.send(Message(queue, id="1"))
    (delivery,) = receive(adapter)
    errors = []

    def elsewhere():
        for act in (
            lambda: adapter.settle(delivery, ACK),
            lambda: adapter.requeue(delivery),
            lambda: adapter.receive(1, 0),
            lambda: adapter.publish(Message(queue)),
        ):
            with pytest.raises(AdapterError, match="only the thread that opened") as raised:
                act()
            errors.append(raised)
        adapter.wake()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(errors) == 4
    adapter.settle(delivery, ACK)
    keep_working(adapter, 0.3)


def test_wake_after_close_does_nothing(queue, opened):
    adapter = opened(queue)
    adapter.close()
    adapter.wake()
    adapter.close()


@pytest.mark.parametrize(("per_channel", "arrive"), [(False, 6), (True, 3)])
def test_prefetch_limits_what_is_sent_ahead(rabbit, opened, per_channel, arrive):
    queues = [rabbit.declare(rabbit.name()) for _ in range(2)]
    adapter = opened(*queues, prefetch=3, per_channel_prefetch=per_channel)
    for queue in queues:
        rabbit.send(*numbered(queue, 10))
    deliveries = receive(adapter, arrive)
    keep_working(adapter, 0.5)
    for delivery in deliveries:
        adapter.settle(delivery, ACK)
    assert receive(adapter, arrive)


def test_pulling_takes_turns_and_nothing_ahead(rabbit, opened):
    queues = [rabbit.declare(rabbit.name()) for _ in range(2)]
    for queue in queues:
        rabbit.send(*numbered(queue, 5))
    adapter = opened(*queues, pull=True)
    assert {delivery.message.subject for delivery in receive(adapter, 2)} == set(queues)
    assert [rabbit.depth(queue) for queue in queues] == [4, 4]


def test_the_options_can_be_in_the_url(rabbit, queue):
    adapter = adapter_from_url(f"{rabbit.url}?ack=batched&prefetch=4&declare=no&heartbeat_s=5")
    assert adapter._consuming.ack is AckMode.BATCHED
    assert (adapter._consuming.prefetch, adapter._consuming.ack_batch) == (4, 2)
    assert not adapter._topology.declare
    adapter.open([consumer_of(queue)] if rabbit.declare(f"{queue}.dead") else [])
    adapter.publish(Message(queue, id="1"))
    assert receive(adapter)
    adapter.close()
