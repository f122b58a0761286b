"""Queues, channels, and what is sent ahead."""

import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from idempotent import Message
from idempotent.adapters import adapter_from_url
from idempotent.adapters.rabbitmq import AckMode
from idempotent.adapters.rabbitmq.topology import Topology
from idempotent.errors import AdapterError
from idempotent.redrive import letters
from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.member import ACK, DEAD, failed
from tests.adapters.rabbitmq.rabbit import consumer_of, keep_working, numbered, receive
from tests.support.logs import events

ROOT = Path(__file__).parents[3]
# Fails at each message once, and writes who handled what.
PROGRAM = """
import os
import sys
import time
from pathlib import Path

from idempotent import Message, Registry, Worker
from idempotent.adapters.copies import ATTEMPT_HEADER
from idempotent.checkers import MemoryChecker
from idempotent.policy import Backoff
from tests.adapters.rabbitmq.rabbit import Rabbit

SOON = Backoff(initial_s=0.1, maximum_s=0.1)


def main(url: str, queue: str, file: str) -> None:
    registry = Registry()

    @registry.consumer(queue, group="g", checker=MemoryChecker(), backoff=SOON)
    def handle(message: Message) -> None:
        time.sleep(0.01)
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(f"{os.getpid()} {message.id}\\n")
        if ATTEMPT_HEADER not in message.raw.properties.headers:
            raise ValueError("once")

    Worker(registry, Rabbit(url).adapter(prefetch=5), concurrency=2, gc_interval_s=None).run()


main(*sys.argv[1:])
"""

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


# A single active consumer


@pytest.fixture(params=["classic", "quorum"])
def single(request, rabbit):
    arguments = {"x-queue-type": request.param, "x-single-active-consumer": True}
    return rabbit.declare(rabbit.name(), **arguments)


def test_delayed_messages_reach_the_active_consumer_alone(rabbit, single):
    with ExitStack() as opened:
        active, standby = (opened.enter_context(consuming(rabbit, single)) for _ in range(2))
        rabbit.send(*numbered(single, 10))
        tries = []

        def act():
            assert standby.receive(10, 0.05) == []
            for delivery in active.receive(10, 0.05):
                tries.append(delivery.message.id)
                active.settle(delivery, failed() if tries.count(delivery.message.id) < 3 else ACK)
            return len(tries) == 30

        until(act, "three tries of each")


def test_delayed_messages_wait_for_nobody_where_no_other_came(rabbit, queue):
    with consuming(rabbit, queue) as one:
        rabbit.send(Message(queue, id="1", headers={"mine": "kept"}))
        until(lambda: [one.settle(each, failed(1.0)) for each in one.receive(1, 0.05)], "the message")
        until(lambda: (one.receive(0, 0.01), rabbit.depth(f"{queue}.retry.1000"))[1], "its copy")
    with consuming(rabbit, queue) as other:
        (delivery,) = until(lambda: other.receive(1, 0.05), "the message again")
        assert (delivery.message.id, dict(delivery.message.headers)) == ("1", {"mine": "kept"})
        # What brought it here was no attempt.
        assert delivery.message.raw.properties.headers["x-idempotent-attempt"] == "1"
        other.settle(delivery, ACK)
        until(lambda: (other.receive(0, 0.01), not rabbit.depth(f"{queue}.retry.due"))[1], "nothing left")


@pytest.mark.slow
def test_of_two_workers_the_standby_handles_nothing_while_the_active_one_lives(rabbit, single, tmp_path):
    file = tmp_path / "handled"
    with ExitStack() as started:
        active, standby = (
            started.enter_context(worker(rabbit, single, file, after=count)) for count in (0, 1)
        )
        rabbit.send(*numbered(single, 30))
        until(lambda: len(handled(file)) == 60, "two tries of each")
        assert {pid for pid, _ in handled(file)} == {active.pid}
        active.kill()
        rabbit.send(*(Message(single, id=f"after-{number}") for number in range(5)))
        until(lambda: handled(file).count((standby.pid, "after-4")) == 2, "the standby")
        assert {name for pid, name in handled(file) if pid == standby.pid} >= {f"after-{n}" for n in range(5)}


@contextmanager
def consuming(rabbit, queue):
    adapter = rabbit.adapter(prefetch=5)
    adapter.open([consumer_of(queue)])
    try:
        yield adapter
    finally:
        adapter.close()


@contextmanager
def worker(rabbit, queue, file, after):
    command = [sys.executable, "-c", PROGRAM, rabbit.url, queue, str(file)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        until(lambda: consumers(rabbit, queue) == after + 1, "its consumer")
        yield process
    finally:
        process.kill()
        process.wait()


def consumers(rabbit, queue):
    return rabbit.consumers(f"{queue}.retry.due") if rabbit.exists(f"{queue}.retry.due") else 0


def handled(file):
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(pid), name) for pid, name in (line.split() for line in lines)]


def test_what_the_broker_moved_to_a_shared_queue_is_the_letter_of_its_own_consumer(rabbit):
    one, two, dead = (rabbit.name(name) for name in ("one", "two", "all-dead"))
    rabbit.declare(dead)
    moves = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-max-length": 1}
    for queue in (one, two):
        rabbit.declare(queue, **moves)
        rabbit.send(Message(queue, id=f"first-{queue}"), Message(queue, id="second"))
    until(lambda: rabbit.depth(dead) == 2, "two dead letters")
    for queue in (one, two):
        (letter,) = letters(consumer_of(queue), rabbit.adapter(dead_letter_queue=dead), idle_s=2.0)
        assert letter.message.id == f"first-{queue}"
        assert letter.reason == f"RabbitMQ moved it from the queue {queue}: maxlen"
