"""Queues, channels, and what is sent ahead."""

import threading

import pytest

from idempotent import Message
from idempotent.adapters import adapter_from_url
from idempotent.adapters.rabbitmq import AckMode
from idempotent.adapters.rabbitmq.topology import Topology
from idempotent.errors import AdapterError
from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.member import ACK, DEAD, failed
from tests.adapters.rabbitmq.rabbit import consumer_of, keep_working, numbered, receive
from tests.support.logs import events

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
    (letter,) = until(lambda: rabbit.look(f"{queue}.dead"), "a dead letter")
    assert letter.id == "1"
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
    letters = until(lambda: len(found := rabbit.look(dead)) == 2 and found, "two dead letters")
    assert {(letter.id, letter.headers["x-idempotent-origin"]) for letter in letters} == {
        ("1", one),
        ("2", two),
    }
    assert not rabbit.exists(f"{one}.dead")


# Consuming


def test_a_deleted_queue_is_an_error_because_its_bindings_are_gone(rabbit, queue, opened):
    adapter = opened(queue)
    keep_working(adapter, 0.2)
    rabbit.delete(queue)
    with pytest.raises(AdapterError, match="was deleted while it was consumed"):
        keep_working(adapter, 10)
    assert not rabbit.exists(queue)


def test_a_queue_that_is_deleted_and_made_again_at_once_is_consumed_again(rabbit, queue, opened, caplog):
    adapter = opened(queue)
    keep_working(adapter, 0.2)
    with rabbit.channel() as channel:
        channel.queue_delete(queue)
        channel.queue_declare(queue, durable=True)
    rabbit.send(Message(queue, id="1"))
    assert receive(adapter)[0].message.id == "1"
    assert "broker_connected" in events(caplog)
    assert "cancelled the consumer" in caplog.text


@pytest.mark.parametrize("suffix", [".dead", ".retry.due"])
def test_a_deleted_queue_of_the_adapter_is_made_again(rabbit, queue, opened, suffix):
    adapter = opened(queue)
    rabbit.send(Message(queue, id="1"))
    (delivery,) = receive(adapter)
    rabbit.delete(f"{queue}{suffix}")
    if suffix == ".retry.due":
        # Its consumer is cancelled, and what the adapter has comes again.
        (delivery,) = receive(adapter)
    adapter.settle(delivery, DEAD)
    until(lambda: (adapter.receive(0, 0.0), rabbit.exists(f"{queue}{suffix}"))[1], "the queue")


def test_a_deleted_queue_that_may_not_be_made_again_is_an_error(rabbit, queue, opened):
    rabbit.declare_all(queue)
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
    if per_channel and rabbit.version >= (4, 3):
        arrive = 6  # a deprecated feature, which is off by default
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
    window = adapter._consuming.window(100)
    assert (window.prefetch, window.ack_batch, window.grows) == (4, 2, False)
    assert not adapter._topology.declare
    adapter.open([consumer_of(rabbit.declare_all(queue))])
    adapter.publish(Message(queue, id="1"))
    assert receive(adapter)
    adapter.close()


# Full queues, streams


def test_what_failed_comes_back_to_a_queue_that_is_full(rabbit, opened):
    queue = rabbit.declare(rabbit.name(), **{"x-max-length": 3, "x-overflow": "reject-publish"})
    adapter = opened(queue)
    rabbit.send(*numbered(queue, 3))
    for delivery in receive(adapter, 3):
        adapter.settle(delivery, failed(0.5))
    adapter.close()
    rabbit.send(*(Message(queue, id=f"new-{number}") for number in range(3)))
    until(lambda: rabbit.depth(f"{queue}.retry.due") == 3, "the failed messages")
    ids = {delivery.message.id for delivery in receive(opened(queue), 6)}
    assert ids == {"m-0", "m-1", "m-2", "new-0", "new-1", "new-2"}


@pytest.mark.parametrize("pull", [False, True])
def test_a_stream_is_refused_before_a_handler_sees_its_messages(rabbit, opened, pull):
    stream = rabbit.declare(rabbit.name(), **{"x-queue-type": "stream"})
    adapter = opened(stream, pull=pull)
    rabbit.send(Message(stream, id="1"))
    with pytest.raises(AdapterError, match="is a stream"):
        receive(adapter)


def test_a_message_that_was_once_in_a_stream_is_as_good_as_others(rabbit, queue, opened):
    adapter = opened(queue)
    rabbit.send(Message(queue, id="1", headers={"x-stream-offset": 7}))
    (delivery,) = receive(adapter)
    adapter.settle(delivery, ACK)
    adapter.close()
    assert rabbit.depth(queue) == 0
