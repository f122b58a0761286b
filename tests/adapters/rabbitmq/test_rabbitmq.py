"""RabbitMqAdapter on a real broker: what becomes of deliveries, and of their copies."""

import threading
import time
from datetime import UTC, datetime

import pika
import pika.exceptions
import pytest

from idempotent import Message, Outcome, Registry, Result, Worker
from idempotent.adapters import adapter_from_url
from idempotent.adapters import rabbitmq_topology as topology
from idempotent.adapters.rabbitmq import AckMode
from idempotent.adapters.rabbitmq_session import Session
from idempotent.adapters.rabbitmq_topology import Topology
from idempotent.checkers import MemoryChecker
from idempotent.claims import ClaimRequest
from idempotent.errors import AdapterError
from idempotent.policy import Backoff
from idempotent.redrive import redrive
from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.rabbit import Rabbit, consumer_of, hang_up, keep_working, numbered, receive

ACK = Result(Outcome.PROCESSED)
DEAD = Result(Outcome.DEAD, error=ValueError("no such customer"))


def failed(after_s=0.1):
    return Result(Outcome.FAILED, error=ValueError("not now"), retry_after_s=after_s)


@pytest.fixture
def rabbit(rabbitmq_url):
    rabbit = Rabbit(rabbitmq_url)
    yield rabbit
    rabbit.clean_up()


@pytest.fixture
def queue(rabbit):
    return rabbit.declare(rabbit.name())


@pytest.fixture
def opened(rabbit):
    """`opened(queue, ...)` is an open adapter that is closed after the test."""
    adapters = []

    def open_(*queues, **options):
        adapter = rabbit.adapter(**options)
        adapters.append(adapter)
        adapter.open([consumer_of(queue) for queue in queues])
        return adapter

    yield open_
    for adapter in adapters:
        adapter.close()


def counting_acks(adapter):
    """Counts the acknowledgements that the adapter really sends."""
    channel = adapter._session._channel
    sent = []
    send = channel.basic_ack

    def basic_ack(tag, multiple=False):
        sent.append((tag, multiple))
        send(tag, multiple)

    channel.basic_ack = basic_ack
    return sent


def run_for(worker, done, within_s=30.0):
    """Runs a worker in a thread until `done()`."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        until(done, "done")
    finally:
        worker.stop()
        thread.join(within_s)
    assert not thread.is_alive()


# What each outcome does


@pytest.mark.parametrize(
    ("result", "ready", "retried", "dead"),
    [
        (Result(Outcome.PROCESSED), 0, 0, 0),
        (Result(Outcome.DUPLICATE), 0, 0, 0),
        (Result(Outcome.IGNORED, error=ValueError()), 0, 0, 0),
        (Result(Outcome.FAILED, error=ValueError(), retry_after_s=55.0), 0, 1, 0),
        (Result(Outcome.DEAD, error=ValueError()), 0, 0, 1),
        (Result(Outcome.REJECTED, error=ValueError()), 0, 0, 1),
        (None, 1, 0, 0),
    ],
    ids=lambda value: value.outcome.value if isinstance(value, Result) else str(value),
)
@pytest.mark.parametrize("ack", [AckMode.MANUAL, AckMode.BATCHED])
def test_an_outcome_leads_to_one_place(rabbit, queue, opened, result, ready, retried, dead, ack):
    adapter = opened(queue, ack=ack)
    rabbit.send(Message(queue, id="1"))
    (delivery,) = receive(adapter)
    if result is not None:
        adapter.settle(delivery, result)
    adapter.close()
    until(lambda: rabbit.depth(queue) == ready, "the queue")
    assert rabbit.depth(f"{queue}.retry.60000") == retried
    assert rabbit.depth(f"{queue}.dead") == dead
    rabbit.delete(f"{queue}.retry.60000")


def test_hold_is_not_for_the_adapter(rabbit, queue, opened):
    adapter = opened(queue)
    rabbit.send(Message(queue, id="1"))
    (delivery,) = receive(adapter)
    with pytest.raises(ValueError, match="worker"):
        adapter.settle(delivery, Result(Outcome.IN_PROGRESS))


def test_closing_gives_back_at_once_what_nobody_has_seen(rabbit, queue, opened):
    adapter = opened(queue)
    rabbit.send(*numbered(queue, 20))
    receive(adapter, 1)
    adapter.close()
    until(lambda: rabbit.depth(queue) == 20, "all of them")


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
    (letter,) = rabbit.look(f"{queue}.dead")
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
        assert message.headers.get("x-idempotent-attempt", "0") == str(attempt)
        if attempt:
            assert message.headers["x-idempotent-origin"] == queue
            (death,) = message.headers["x-death"]
            assert (death["queue"], death["reason"], death["count"]) == (f"{queue}.retry.100", "expired", 1)
        adapter.settle(delivery, failed())


def test_a_quorum_queues_delivery_count_is_a_header(rabbit, opened):
    queue = rabbit.declare(rabbit.name(), **{"x-queue-type": "quorum"})
    adapter = opened(queue)
    rabbit.send(Message(queue, id="1"))
    (delivery,) = receive(adapter)
    adapter.requeue(delivery)
    (again,) = receive(adapter)
    assert again.message.redelivered
    assert again.message.headers["x-delivery-count"] >= 1


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
    monkeypatch.setattr("idempotent.adapters.rabbitmq_publisher.ASK_AGAIN_S", 0.5)
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


# Copies that the broker does not take


def test_a_deleted_dead_letter_queue_is_made_again(rabbit, queue, opened):
    adapter = opened(queue)
    rabbit.send(Message(queue, id="1"))
    (delivery,) = receive(adapter)
    rabbit.delete(f"{queue}.dead")
    adapter.settle(delivery, DEAD)
    assert [letter.id for letter in rabbit.look(f"{queue}.dead")] == ["1"]


@pytest.mark.parametrize("result", [DEAD, failed()], ids=["dead", "failed"])
@pytest.mark.parametrize("ack", ["manual", "batched"])
def test_a_message_whose_copy_has_nowhere_to_go_is_not_acknowledged(rabbit, queue, opened, result, ack):
    rabbit.declare(f"{queue}.dead")
    adapter = opened(queue, declare=False, ack=ack)
    rabbit.delete(f"{queue}.dead")
    rabbit.send(Message(queue, id="1"))
    (delivery,) = receive(adapter)
    adapter.settle(delivery, result)
    keep_working(adapter, 0.5)
    adapter.close()
    until(lambda: rabbit.depth(queue) == 1, "the original")


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
    assert [letter.id for letter in rabbit.look(dead)] == ["1"]


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
            with pytest.raises(AdapterError, match="one thread") as raised:
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


# Batched acknowledgements


def test_one_word_acknowledges_many(rabbit, queue, opened):
    adapter = opened(queue, ack="batched", ack_batch=10, ack_interval_s=5.0)
    sent = counting_acks(adapter)
    rabbit.send(*numbered(queue, 100))
    for delivery in receive(adapter, 100):
        adapter.settle(delivery, ACK)
    assert len(sent) == 10
    assert all(multiple for _, multiple in sent)
    adapter.close()
    assert rabbit.depth(queue) == 0


def test_an_unfinished_delivery_is_never_covered_by_that_word(rabbit, queue, opened):
    adapter = opened(queue, ack="batched", ack_batch=2)
    rabbit.send(*numbered(queue, 9))
    deliveries = receive(adapter, 9)
    for delivery in deliveries[::-1]:
        if delivery is not deliveries[4]:
            adapter.settle(delivery, ACK)
            keep_working(adapter, 0.15)
    keep_working(adapter, 1.3)
    hang_up(adapter)
    (again,) = receive(adapter)
    assert again.message.id == "m-4"
    keep_working(adapter, 0.5)


def test_a_batch_that_does_not_fill_is_sent_by_the_clock(rabbit, queue, opened):
    adapter = opened(queue, ack="batched", ack_batch=50, ack_interval_s=0.1)
    rabbit.send(*numbered(queue, 3))
    first, _, third = receive(adapter, 3)
    adapter.settle(first, ACK)
    keep_working(adapter, 0.4)
    # The one that waits for a slow one goes by itself after a second.
    adapter.settle(third, ACK)
    keep_working(adapter, 1.5)
    hang_up(adapter)
    assert [delivery.message.id for delivery in receive(adapter)] == ["m-1"]
    keep_working(adapter, 0.5)


def test_a_prefetch_smaller_than_a_batch_does_not_stall(rabbit, queue, opened):
    adapter = opened(queue, ack="batched", prefetch=4, ack_batch=1000, ack_interval_s=60.0)
    rabbit.send(*numbered(queue, 40))
    slow = receive(adapter)[0]
    for _ in range(13):
        for delivery in receive(adapter, 3, within_s=5.0):
            adapter.settle(delivery, ACK)
    adapter.settle(slow, ACK)
    adapter.close()
    assert rabbit.depth(queue) == 0


def test_one_that_is_given_back_is_not_acknowledged(rabbit, queue, opened):
    adapter = opened(queue, ack="batched", ack_batch=3)
    rabbit.send(*numbered(queue, 3))
    first, second, third = receive(adapter, 3)
    adapter.requeue(second)
    adapter.settle(third, ACK)
    adapter.settle(first, ACK)
    (again,) = receive(adapter)
    assert again.message.id == "m-1"
    adapter.close()
    until(lambda: rabbit.depth(queue) == 1, "one")


# At most once


def test_auto_never_delivers_again_what_it_has_handed_out(rabbit, queue, opened):
    adapter = opened(queue, ack="auto", prefetch=5)
    rabbit.send(*numbered(queue, 10))
    taken = receive(adapter, 7)
    hang_up(adapter)
    rest = receive(adapter, 3)
    assert {d.message.id for d in rest}.isdisjoint({d.message.id for d in taken})
    for delivery in taken + rest:
        adapter.settle(delivery, ACK)
    adapter.close()
    assert rabbit.depth(queue) == 0


def test_auto_still_keeps_what_failed_what_is_dead_and_what_is_given_back(rabbit, queue, opened):
    adapter = opened(queue, ack="auto")
    rabbit.send(*numbered(queue, 3))
    one, two, three = receive(adapter, 3)
    hang_up(adapter)
    # The originals are gone, so that nobody delivers them again.
    adapter.settle(one, failed())
    adapter.settle(two, DEAD)
    adapter.requeue(three)
    assert {delivery.message.id for delivery in receive(adapter, 2)} == {"m-0", "m-2"}
    assert [letter.id for letter in rabbit.look(f"{queue}.dead")] == ["m-1"]


# With a worker


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
    claim = checker.claim(ClaimRequest(consumer.request(Message(queue, id="1")).key)).claim
    rabbit.send(Message(queue, id="1"))
    timer = threading.Timer(1.5, lambda: checker.release(claim))
    timer.start()
    run_for(Worker(registry, rabbit.adapter(), gc_interval_s=None), lambda: done)
    timer.join()
    assert done == ["1"]
    assert rabbit.depth(queue) == rabbit.depth(f"{queue}.dead") == 0


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
        assert worker._outcomes[Outcome.DUPLICATE] == 0
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
    assert redrive(handle, rabbit.adapter(), idle_s=0.5).returned == 1
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
        seen.append((message.id, message.headers.get("x-idempotent-attempt")))
        raise ValueError("never")

    rabbit.send(Message(queue, id="1"))
    run_for(Worker(registry, rabbit.adapter(), gc_interval_s=None), lambda: rabbit.depth(f"{queue}.dead"))
    assert seen == [("1", None), ("1", "1"), ("1", "2")]
