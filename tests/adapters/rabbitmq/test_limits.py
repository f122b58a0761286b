"""RabbitMqAdapter at the broker's limits: sizes of bodies and headers, time to acknowledge, lost consumers."""

import logging
import time

import pytest

from idempotent import Message, Outcome, Registry, Result, Worker
from idempotent.adapters.rabbitmq import session as rabbitmq_session
from idempotent.checkers import MemoryChecker
from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.member import run_for
from tests.adapters.rabbitmq.rabbit import Rabbit, consumer_of, keep_working, numbered, receive
from tests.support.logs import events

DEAD = Result(Outcome.DEAD, error=ValueError("a long reason " * 100))
FAILED = Result(Outcome.FAILED, error=ValueError("not now"), retry_after_s=0.3)
# With these, headers of RabbitMQ's own length just fit into a frame, and ours do not fit beside them.
ALMOST_A_FRAME = "x" * 130_930


def open_on(rabbit, queue, **options):
    adapter = rabbit.adapter(**options)
    adapter.open([consumer_of(queue)])
    return adapter


# Headers


def test_a_dead_letter_with_no_room_for_our_headers_leaves_out_the_largest_and_names_it(rabbit, queue):
    adapter = open_on(rabbit, queue)
    rabbit.send(Message(queue, b"all of it", id="1", headers={"big": ALMOST_A_FRAME, "colour": "red"}))
    (delivery,) = receive(adapter)
    adapter.settle(delivery, DEAD)
    adapter.close()
    (letter,) = rabbit.look(f"{queue}.dead")
    assert (letter.id, letter.body) == ("1", b"all of it")
    assert letter.headers["x-idempotent-reason"].startswith("ValueError: a long reason")
    assert (letter.headers["x-idempotent-cut"], letter.headers["colour"]) == ("big", "red")
    assert "big" not in letter.headers
    assert rabbit.depth(queue) == 0


def test_what_failed_with_no_room_for_our_headers_comes_again_whole(rabbit, queue):
    adapter = open_on(rabbit, queue)
    rabbit.send(Message(queue, id="1", headers={"big": ALMOST_A_FRAME}))
    (delivery,) = receive(adapter)
    failed_at = time.monotonic()
    adapter.settle(delivery, FAILED)
    (again,) = receive(adapter)
    assert time.monotonic() - failed_at >= 0.3
    assert again.message.headers["big"] == ALMOST_A_FRAME
    adapter.settle(again, DEAD)
    adapter.close()
    assert rabbit.depth(queue) == 0


# Bodies


@pytest.mark.slow
def test_a_body_that_the_broker_does_not_take_any_more_is_not_lost_and_holds_nobody_up(tuned_rabbitmq):
    rabbit = Rabbit(tuned_rabbitmq.url)
    queue = rabbit.declare(rabbit.name())
    adapter = open_on(rabbit, queue)
    rabbit.send(
        Message(queue, b"x" * 5000, id="dead"),
        Message(queue, b"x" * 5000, id="failed"),
        Message(queue, b"x", id="small"),
    )
    tuned_rabbitmq.tune("max_message_size", 1000)
    dead, failed, small = receive(adapter, 3)
    adapter.settle(dead, DEAD)
    adapter.settle(failed, FAILED)
    adapter.settle(small, DEAD)
    (letter,) = until(lambda: rabbit.look(f"{queue}.dead"), "a dead letter")
    assert letter.id == "small"
    # What failed waits for its time here, without a copy; what is dead waits for the broker.
    (again,) = receive(adapter)
    assert again.message.id == "failed"
    assert adapter.stale_settlements == 0
    adapter.close()
    until(lambda: rabbit.depth(queue) == 2, "both originals")


# Time


@pytest.mark.slow
def test_a_handler_longer_than_the_consumer_timeout_has_one_effect_and_a_warning(tuned_rabbitmq, caplog):
    tuned_rabbitmq.tune("consumer_timeout", 1000)
    tuned_rabbitmq.tune("channel_tick_interval", 200)
    rabbit = Rabbit(tuned_rabbitmq.url)
    queue = rabbit.declare(rabbit.name(), **{"x-queue-type": "quorum"})
    # The second one is only sent ahead, and runs out of time as well.
    rabbit.send(*numbered(queue, 2))
    adapter, done, sessions = rabbit.adapter(), [], set()
    registry = Registry()

    @registry.consumer(queue, group="g", checker=MemoryChecker())
    def slow(message):
        sessions.add(adapter._session)
        until(lambda: len(sessions) > 1 or sessions.add(adapter._session), "a new session")
        done.append(message.id)

    outcomes = []
    worker = Worker(
        registry, adapter, gc_interval_s=None, on_result=lambda _, result: outcomes.append(result.outcome)
    )
    with caplog.at_level(logging.WARNING):
        # Each of the two comes again, and that delivery is acknowledged.
        run_for(worker, lambda: outcomes.count(Outcome.DUPLICATE) == 2)
    assert sorted(done) == ["m-0", "m-1"]
    assert any("consumer_timeout" in getattr(record, "error", "") for record in caplog.records)
    assert rabbit.depth(queue) == rabbit.depth(f"{queue}.dead") == 0


@pytest.mark.slow
def test_a_consumer_that_the_broker_cancels_for_its_timeout_costs_no_delivery(rabbit, caplog):
    if rabbit.version < (4, 3):
        pytest.skip("before RabbitMQ 4.3 a timeout closes the channel, as in the test above")
    limits = {"x-queue-type": "quorum", "x-consumer-timeout": 1000, "x-delivery-limit": 1}
    queue = rabbit.declare(rabbit.name(), **limits)
    rabbit.send(*numbered(queue, 1))
    adapter, done, sessions = rabbit.adapter(), [], set()
    registry = Registry()

    @registry.consumer(queue, group="g", checker=MemoryChecker())
    def slow(message):
        until(lambda: sessions.add(adapter._session) or len(sessions - {None}) > 4, "four timeouts")
        done.append(message.id)

    with caplog.at_level(logging.WARNING):
        run_for(Worker(registry, adapter, gc_interval_s=None), lambda: done and not rabbit.depth(queue))
    assert done == ["m-0"]
    assert "consumer_timeout" in caplog.text
    assert rabbit.depth(f"{queue}.dead") == 0


# Consumers


def test_a_consumer_that_the_broker_lost_without_a_word_is_noticed(tuned_rabbitmq, monkeypatch, caplog):
    monkeypatch.setattr(rabbitmq_session, "DOUBT_AFTER_S", 0.5)
    rabbit = Rabbit(tuned_rabbitmq.url)
    queue = rabbit.declare(rabbit.name())
    adapter = open_on(rabbit, queue)
    keep_working(adapter, 1.2)
    assert "broker_connection_lost" not in events(caplog)
    lost = tuned_rabbitmq.evaluate(
        f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)),'
        "[{Channel, Tag, _, _, _, _, _, _} | _] = rabbit_amqqueue:consumers(Q),"
        "gen_server2:call(amqqueue:get_pid(Q), {basic_cancel, Channel, Tag, undefined, <<>>}, infinity),"
        "length(rabbit_amqqueue:consumers(Q)).",
    )
    assert lost == "0"
    rabbit.send(Message(queue, id="1"))
    assert receive(adapter)[0].message.id == "1"
    adapter.close()
