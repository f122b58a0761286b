"""Copies have a connection of their own: what stops them stops neither other messages nor the end of the worker."""

import re
import threading
import time
from contextlib import contextmanager

import pytest

from idempotent import Message, Registry, Worker
from idempotent.adapters.rabbitmq import RabbitMqAdapter
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError, PublishError
from idempotent.policy import Backoff
from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.member import DEAD
from tests.adapters.rabbitmq.rabbit import SOON, Rabbit, consumer_of, keep_working, numbered, receive
from tests.support.logs import events, logged
from tests.support.services import PrivateRabbitMq
from tests.support.services.process import free_port

PROMPT_S = 20.0
_CONNECTIONS = "rabbit_networking:connections()"
_CLOSE = 'rabbit_networking:close_connection(P, "by the test")'


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
def only_publishing(rabbit, **options):
    adapter = rabbit.adapter(**options)
    adapter.open([])
    try:
        yield adapter
    finally:
        adapter.close()


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


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("127.0.0.1:{port}", "Connection refused"),
        ("no-such-host.invalid:{port}", "not known|name resolution"),
    ],
    ids=["no broker", "no host"],
)
def test_a_broker_that_is_away_is_named_with_the_reason(caplog, place, reason):
    adapter = RabbitMqAdapter(f"amqp://{place.format(port=free_port())}", backoff=SOON)
    adapter.open([])
    try:
        until(lambda: (adapter.receive(1, 0.1), len(publisher_lines(caplog)) > 1)[1], "two attempts")
        with pytest.raises(PublishError, match=reason) as raised:
            adapter.publish(Message("orders", id="1"))
    finally:
        adapter.close()
    assert raised.value.unknown.keys() == {0}
    said = [*publisher_lines(caplog), *raised.value.unknown.values()]
    assert not [text for text in said if not re.search(reason, text) or "AMQPConn" in text]


def publisher_lines(caplog):
    """What the log says of attempts to connect, those of the publisher's own connection."""
    told = logged(caplog, "broker_unreachable")
    return [record.error for record in told if "publishing" in record.broker]


def hopeless_and_good(queue, done):
    """Each message whose id begins with "bad" is dead at once, each "later" fails, the others are done."""
    registry = Registry()

    @registry.consumer(
        queue, group="g", checker=MemoryChecker(), retry_for=(OSError,), backoff=Backoff(0.1, 0.1)
    )
    def handle(message):
        if message.id.startswith("bad"):
            raise ValueError(message.id)
        if message.id.startswith("later") and "x-idempotent-attempt" not in message.raw.properties.headers:
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
        until(lambda: "broker_blocks" in events(caplog), "the alarm in the log")
    (said,) = logged(caplog, "broker_blocks")
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


def test_a_message_without_an_answer_is_told_from_those_confirmed(tuned_rabbitmq, monkeypatch):
    monkeypatch.setattr("idempotent.adapters.rabbitmq.publisher._CONFIRM_S", 2.0)
    rabbit = Rabbit(tuned_rabbitmq.url)
    silent, queue = rabbit.declare(rabbit.name()), rabbit.declare(rabbit.name())
    messages = [
        Message(queue, id="0"),
        Message(silent, id="1"),
        Message("q" * 300, id="2"),
        Message(queue, id="3"),
    ]
    with only_publishing(rabbit) as adapter, suspended(tuned_rabbitmq, silent):
        with pytest.raises(PublishError, match="did not confirm") as raised:
            adapter.publish_many(messages)
        assert (set(raised.value.unknown), set(raised.value.refused)) == ({1}, {2})
        assert [message.id for message in rabbit.look(queue)] == ["0", "3"]
    rabbit.clean_up()


def test_messages_whose_connection_is_lost_are_unknown(tuned_rabbitmq):
    rabbit = Rabbit(tuned_rabbitmq.url)
    silent, queue = rabbit.declare(rabbit.name()), rabbit.declare(rabbit.name())
    with only_publishing(rabbit) as adapter, suspended(tuned_rabbitmq, silent):
        until(lambda: adapter.connected, "a connection")
        timer = threading.Timer(1.0, tuned_rabbitmq.evaluate, [f"[{_CLOSE} || P <- {_CONNECTIONS}]."])
        timer.start()
        with pytest.raises(PublishError, match="connection was lost") as raised:
            adapter.publish_many([Message(queue, id="0"), Message(silent, id="1")])
        timer.join()
        assert (set(raised.value.unknown), raised.value.refused) == ({1}, {})
        adapter.publish(Message(queue, id="2"))
        assert [message.id for message in rabbit.look(queue)] == ["0", "2"]
    rabbit.clean_up()


def test_a_full_queue_refuses_only_what_it_has_no_room_for(rabbit):
    queue = rabbit.declare(rabbit.name(), **{"x-max-length": 2, "x-overflow": "reject-publish"})
    other = rabbit.declare(rabbit.name())
    messages = [Message(queue, id=str(number)) for number in range(5)]
    with only_publishing(rabbit) as adapter, pytest.raises(PublishError, match="is it full") as raised:
        adapter.publish_many([Message(other, id="first"), *messages, Message(other, id="last")])
    assert (set(raised.value.refused), raised.value.unknown) == ({3, 4, 5}, {})
    assert [message.id for message in rabbit.look(queue)] == ["0", "1"]
    assert [message.id for message in rabbit.look(other)] == ["first", "last"]


def test_queues_that_are_missing_refuse_their_own_messages_and_no_others(rabbit):
    queue, missing = rabbit.declare(rabbit.name()), rabbit.name()
    at = {3, 4, 499, 650}
    messages = [Message(missing if number in at else queue, b"x", id=str(number)) for number in range(700)]
    with (
        only_publishing(rabbit, declare=False) as adapter,
        pytest.raises(PublishError, match="does not exist") as raised,
    ):
        adapter.publish_many(messages)
    assert (set(raised.value.refused), raised.value.unknown) == (at, {})
    assert [message.id for message in rabbit.look(queue)] == [
        str(number) for number in range(700) if number not in at
    ]


def test_messages_too_large_for_the_broker_are_named_and_the_others_arrive_in_order(tuned_rabbitmq):
    tuned_rabbitmq.tune("max_message_size", 1000)
    rabbit = Rabbit(tuned_rabbitmq.url)
    queue, at = rabbit.declare(rabbit.name()), {5, 6, 17}
    messages = [Message(queue, bytes(2000 if number in at else 10), id=str(number)) for number in range(20)]
    with only_publishing(rabbit) as adapter:
        with pytest.raises(PublishError, match="max size") as raised:
            adapter.publish_many(messages)
        adapter.publish(Message(queue, id="next"))
    assert (set(raised.value.refused), raised.value.unknown) == (at, {})
    # Those before the first one may come twice: their confirmations are lost with the channel.
    first = list(dict.fromkeys(message.id for message in rabbit.look(queue)))
    assert first == [*(str(number) for number in range(20) if number not in at), "next"]
    rabbit.clean_up()


def test_an_adapter_opened_only_to_publish_has_one_connection_and_consumes_nothing(tuned_rabbitmq):
    rabbit = Rabbit(tuned_rabbitmq.url)
    queue = rabbit.declare(rabbit.name())
    with only_publishing(rabbit) as adapter:
        adapter.publish(Message(queue, id="1"))
        until(lambda: "1" in tuned_rabbitmq.evaluate(f"length({_CONNECTIONS})."), "one connection")
        assert rabbit.consumers(queue) == 0
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
