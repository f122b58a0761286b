"""Copies have a connection of their own: what stops them stops neither other messages nor the end of the worker."""

import threading
import time
from contextlib import contextmanager

import pytest

from idempotent import Message, Registry, Worker
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError
from idempotent.policy import Backoff
from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.member import DEAD
from tests.adapters.rabbitmq.rabbit import Rabbit, consumer_of, keep_working, numbered, receive
from tests.support.services import PrivateRabbitMq

PROMPT_S = 20.0


@contextmanager
def suspended(broker, queue):
    """A queue that takes messages and answers nothing, like one whose disk hangs."""
    name = f'rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)'
    process = f"{{ok, Q}} = rabbit_amqqueue:lookup({name}), Pid = amqqueue:get_pid(Q)"
    broker.evaluate(f"{process}, sys:suspend(Pid).")
    try:
        yield
    finally:
        broker.evaluate(f"{process}, sys:resume(Pid).")


@contextmanager
def working(worker):
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        began = time.monotonic()
        thread.join(60.0)
        assert not thread.is_alive()
        assert time.monotonic() - began < PROMPT_S


def hopeless_and_good(queue, done):
    """Each message whose id begins with "bad" is dead at once, each "later" fails, the others are done."""
    registry = Registry()

    @registry.consumer(
        queue, group="g", checker=MemoryChecker(), retry_for=(OSError,), backoff=Backoff(0.1, 0.1)
    )
    def handle(message):
        if message.id.startswith("bad"):
            raise ValueError(message.id)
        if message.id.startswith("later") and "x-idempotent-attempt" not in message.headers:
            raise OSError(message.id)
        done.append(message.id)

    return registry


@pytest.mark.slow
def test_a_dead_letter_queue_that_does_not_answer_stops_nothing_else(tuned_rabbitmq):
    rabbit, done = Rabbit(tuned_rabbitmq.url), []
    queue = rabbit.declare(rabbit.name())
    rabbit.declare(f"{queue}.dead")
    bad = [Message(queue, id=f"bad-{number}") for number in range(10)]
    adapter = rabbit.adapter()
    worker = Worker(hopeless_and_good(queue, done), adapter, gc_interval_s=None)
    with working(worker):
        until(lambda: adapter.connected, "a connection")
        with suspended(tuned_rabbitmq, f"{queue}.dead"):
            rabbit.send(*bad, Message(queue, id="later"), *numbered(queue, 20))
            # Ten deliveries wait for their copies, more than the worker takes at once. Delayed copies still leave.
            until(lambda: len(done) == 21, "the others")
            worker.stop()
            until(lambda: not adapter.connected, "its end")
    letters = {letter.id for letter in rabbit.look(f"{queue}.dead")}
    left = {message.id for message in rabbit.look(queue)}
    assert letters | left == {message.id for message in bad}
    rabbit.clean_up()


@pytest.mark.slow
def test_a_broker_short_of_memory_still_gets_acknowledgements_and_delivers(spare, caplog):
    broker = spare(PrivateRabbitMq)
    rabbit, done = Rabbit(broker.url), []
    queue = rabbit.declare(rabbit.name())
    bad = [Message(queue, id=f"bad-{number}") for number in range(3)]
    rabbit.send(*bad, *numbered(queue, 10))
    worker = Worker(hopeless_and_good(queue, done), rabbit.adapter(), gc_interval_s=None)
    with broker.short_of_memory(), working(worker):
        until(lambda: len(done) == 10, "the others")
        until(lambda: "broker_blocks" in caplog.messages, "the alarm in the log")
    (said,) = [record for record in caplog.records if record.message == "broker_blocks"]
    assert "memory" in said.error
    letters = {letter.id for letter in rabbit.look(f"{queue}.dead")}
    left = {message.id for message in rabbit.look(queue)}
    assert letters | left == {message.id for message in bad}
    rabbit.clean_up()


def test_publishing_to_a_queue_that_does_not_answer_ends_with_what_to_do(tuned_rabbitmq, monkeypatch):
    monkeypatch.setattr("idempotent.adapters.rabbitmq.publisher._CONFIRM_S", 1.0)
    rabbit = Rabbit(tuned_rabbitmq.url)
    queue = rabbit.declare(rabbit.name())
    adapter = rabbit.adapter()
    with suspended(tuned_rabbitmq, queue), pytest.raises(AdapterError, match="did not confirm"):
        adapter.publish(Message(queue, id="1"))
    adapter.close()
    rabbit.clean_up()


def test_copies_for_one_place_keep_their_order(rabbit, queue, opened):
    adapter = opened(queue)
    rabbit.send(*numbered(queue, 50))
    for delivery in receive(adapter, 50):
        adapter.settle(delivery, DEAD)
    until(lambda: (keep_working(adapter, 0.1), rabbit.depth(f"{queue}.dead") == 50)[1], "dead letters")
    assert [letter.id for letter in rabbit.look(f"{queue}.dead")] == [f"m-{number}" for number in range(50)]
    adapter.close()
    assert rabbit.depth(queue) == 0


def test_closing_waits_for_the_confirmations_of_copies(rabbit, queue, monkeypatch):
    # On a busy machine fifty of them take longer than the two seconds that a closing worker has.
    monkeypatch.setattr("idempotent.adapters.rabbitmq.adapter._LAST_COPIES_S", 60.0)
    adapter = rabbit.adapter()
    adapter.open([consumer_of(queue)])
    rabbit.send(*numbered(queue, 50))
    for delivery in receive(adapter, 50):
        adapter.settle(delivery, DEAD)
    adapter.close()
    assert rabbit.depth(queue) == 0
    assert rabbit.depth(f"{queue}.dead") == 50
