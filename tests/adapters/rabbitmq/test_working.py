"""Workers over RabbitMQ, from a message to its effect."""

import threading
import time

import pika
import pika.exceptions
import pytest

from idempotent import Message, Outcome, Registry, Worker
from idempotent.adapters.rabbitmq.session import Session
from idempotent.checkers import MemoryChecker
from idempotent.claims import ClaimRequest
from idempotent.observe import counters
from idempotent.policy import Backoff
from idempotent.redrive import redrive
from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.member import ACK, run_for
from tests.adapters.rabbitmq.rabbit import consumer_of, keep_working, numbered


@pytest.mark.slow
@pytest.mark.parametrize("waiting", [0, 1], ids=["with room for more", "full"])
def test_a_handler_longer_than_three_heartbeats_costs_no_connection(rabbit, queue, waiting):
    rabbit.send(*numbered(queue, 1 + waiting))
    adapter = rabbit.adapter(heartbeat_s=1)
    sessions, done = set(), []
    registry = Registry()

    @registry.consumer(queue, group="g", checker=MemoryChecker())
    def slow(message):
        sessions.add(adapter._session)
        time.sleep(0.0 if done else 4.5)
        sessions.add(adapter._session)
        done.append(message.id)

    worker = Worker(registry, adapter, gc_interval_s=None)
    run_for(worker, lambda: len(done) > waiting and rabbit.depth(queue) == 0)
    assert done == ["m-0", "m-1"][: 1 + waiting]
    assert len(sessions) == 1
    assert adapter.stale_settlements == 0


def test_waiting_for_another_owner_does_not_eat_the_delivery_limit(rabbit):
    queue = rabbit.declare(rabbit.name(), **{"x-queue-type": "quorum", "x-delivery-limit": 1})
    checker, done = MemoryChecker(), []
    registry = Registry()
    consumer = registry.consumer(queue, group="g", checker=checker)(lambda message: done.append(message.id))
    claim = checker.protocol.claim(
        ClaimRequest(consumer.binding.requests.of(Message(queue, id="1")).key)
    ).claim
    rabbit.send(Message(queue, id="1"))
    timer = threading.Timer(1.5, lambda: checker.protocol.release(claim))
    timer.start()
    run_for(Worker(registry, rabbit.adapter(), gc_interval_s=None), lambda: done)
    timer.join()
    assert done == ["1"]
    assert rabbit.depth(queue) == rabbit.depth(f"{queue}.dead") == 0


def test_orderly_stops_do_not_eat_the_delivery_limit(rabbit):
    queue = rabbit.declare(rabbit.name(), **{"x-queue-type": "quorum", "x-delivery-limit": 3})
    rabbit.send(*numbered(queue, 50))
    done = []
    registry = Registry()

    @registry.consumer(queue, group="g", checker=MemoryChecker())
    def slow(message):
        time.sleep(0.05)
        done.append(message.id)

    for _ in range(6):
        worker, before = Worker(registry, rabbit.adapter(), gc_interval_s=None), len(done)
        run_for(worker, lambda before=before: len(done) > before)
        assert len(done) < 50, "too fast to mean anything"
    until(lambda: rabbit.depth(queue) + len(done) == 50, "all the others back in their queue")
    assert rabbit.depth(f"{queue}.dead") == 0


@pytest.mark.parametrize("held", [1, 3])
def test_deliveries_that_wait_do_not_keep_others_away(rabbit, queue, held):
    checker, done = MemoryChecker(), []
    registry = Registry()
    consumer = registry.consumer(queue, group="g", checker=checker)(lambda message: done.append(message.id))
    requests = consumer.binding.requests
    for message in numbered(queue, held):
        checker.protocol.claim(ClaimRequest(requests.of(message).key))
    rabbit.send(*numbered(queue, held + 5))
    # The worker takes two at once, so the broker sends two, until both wait for the owners of their keys.
    run_for(Worker(registry, rabbit.adapter(), gc_interval_s=None), lambda: len(done) == 5)


@pytest.mark.slow
def test_a_window_that_grew_in_an_outage_does_not_keep_messages_from_other_workers(rabbit, queue):
    """After an outage of the store, say: meanwhile its window grew, for all that it took had to wait."""
    adapter = rabbit.adapter()
    adapter.capacity = 2
    adapter.open([consumer_of(queue)])
    rabbit.send(*numbered(queue, 200))
    waiting = []

    def grown():
        waiting.extend(adapter.receive(10, 0.3))
        return rabbit.consumers(queue) >= 4

    until(grown, "a window that grows")
    for delivery in waiting:
        adapter.settle(delivery, ACK)
    until_busy = time.monotonic() + 1.5  # all handlers are busy now, with what is sent in the place of these
    while time.monotonic() < until_busy:
        adapter.receive(0, 0.1)
    adapter.receive(1, 0.3)
    adapter.receive(0, 0.0)
    assert rabbit.consumers(queue) == 1
    adapter.close()


def test_a_message_without_a_key_is_a_dead_letter_unless_the_consumer_takes_it(rabbit):
    strict, easy = (rabbit.declare(rabbit.name(name)) for name in ("strict", "easy"))
    done = []
    registry = Registry()
    registry.consumer(strict, group="g", checker=MemoryChecker())(lambda message: done.append("strict"))
    registry.consumer(easy, group="g", checker=MemoryChecker(), on_missing_key="process")(
        lambda message: done.append("easy")
    )
    rabbit.send(Message(strict), Message(easy))
    run_for(
        Worker(registry, rabbit.adapter(), gc_interval_s=None), lambda: done and rabbit.look(f"{strict}.dead")
    )
    assert done == ["easy"]
    (letter,) = rabbit.look(f"{strict}.dead")
    assert letter.id is None
    assert letter.headers["x-idempotent-reason"].startswith("MissingKeyError")
    assert letter.headers["x-idempotent-outcome"] == "rejected"


def test_a_worker_that_stops_leaves_nothing_to_do_twice(rabbit, queue):
    done = []
    registry = Registry()
    registry.consumer(queue, group="g", checker=MemoryChecker())(lambda message: done.append(message.id))
    rabbit.send(*numbered(queue, 50))
    for enough in (20, 50):
        adapter = rabbit.adapter(ack="batched", ack_interval_s=60.0, ack_batch=1000)
        worker = Worker(registry, adapter, concurrency=3, gc_interval_s=None)
        run_for(worker, lambda enough=enough: len(done) >= enough)
        assert counters.snapshot().get((f"{queue}:g", Outcome.DUPLICATE), 0) == 0
        assert len(done) + rabbit.depth(queue) == 50


def test_one_message_in_two_queues_is_two_affairs(rabbit):
    queues = [rabbit.declare(rabbit.name()) for _ in range(2)]
    checker, done = MemoryChecker(), []
    registry = Registry()
    for queue in queues:
        registry.consumer(queue, group="g", checker=checker)(lambda message: done.append(message.subject))
    exchange = rabbit.name("both")
    with rabbit.channel() as channel:
        channel.exchange_declare(exchange, "fanout", auto_delete=True)
        for queue in queues:
            channel.queue_bind(queue, exchange)
        channel.basic_publish(exchange, "paid.eu", b"", pika.BasicProperties(message_id="1"))
        for queue in queues:
            channel.queue_unbind(queue, exchange)
    run_for(Worker(registry, rabbit.adapter(), gc_interval_s=None), lambda: len(done) == 2)
    assert sorted(done) == sorted(queues)


def test_a_connection_that_ends_each_time_is_not_tried_without_a_pause(rabbit, queue, opened, monkeypatch):
    def end(self, wait_s):
        raise pika.exceptions.StreamLostError("something in it")

    adapter = opened(queue, backoff=Backoff(initial_s=0.2, maximum_s=0.2))
    monkeypatch.setattr(Session, "_work", end)
    keep_working(adapter, 1.0)
    assert 2 <= adapter._attempts <= 12


@pytest.mark.slow
def test_dead_letters_can_be_brought_back(rabbit, queue):
    checker, done = MemoryChecker(), []
    registry = Registry()

    @registry.consumer(queue, group="g", checker=checker, max_attempts=1)
    def handle(message):
        if not mended:
            raise ValueError("broken")
        done.append((message.id, message.raw.properties.content_type))

    mended = []
    with rabbit.channel() as channel:
        rabbit.publish(channel, queue, b"", pika.BasicProperties(message_id="1", content_type="text/x"))
    run_for(Worker(registry, rabbit.adapter(), gc_interval_s=None), lambda: rabbit.depth(f"{queue}.dead"))
    mended.append(True)
    assert redrive(handle, rabbit.adapter(), idle_s=3.0).returned == 1
    assert not rabbit.exists(f"{queue}.dead.dead")
    run_for(Worker(registry, rabbit.adapter(), gc_interval_s=None), lambda: done)
    assert done == [("1", "text/x")]
    assert rabbit.depth(f"{queue}.dead") == 0


def test_a_failing_message_is_dead_after_its_attempts_and_keeps_its_key(rabbit, queue):
    seen = []
    registry = Registry()

    @registry.consumer(
        queue,
        group="g",
        checker=MemoryChecker(),
        max_attempts=3,
        backoff=Backoff(initial_s=0.1, maximum_s=0.1),
    )
    def handle(message):
        seen.append((message.id, message.raw.properties.headers.get("x-idempotent-attempt")))
        raise ValueError("never")

    rabbit.send(Message(queue, id="1"))
    run_for(Worker(registry, rabbit.adapter(), gc_interval_s=None), lambda: rabbit.depth(f"{queue}.dead"))
    assert seen == [("1", None), ("1", "1"), ("1", "2")]
