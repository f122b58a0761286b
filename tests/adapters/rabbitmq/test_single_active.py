"""A queue with a single active consumer: who is not active handles nothing, delayed messages neither."""

import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from idempotent import Message
from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.member import ACK, failed
from tests.adapters.rabbitmq.rabbit import consumer_of, numbered

ROOT = Path(__file__).parents[3]


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
    command = [sys.executable, "-m", "tests.adapters.rabbitmq.handling", rabbit.url, queue, str(file)]
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
