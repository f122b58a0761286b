"""RabbitMQ has what it sent ahead back while a consumer is paused: unsettled for long, it would cost the channel."""

import time
from contextlib import closing

import pytest

from idempotent import Message, Outcome, Registry, Result
from idempotent.adapters.rabbitmq import RabbitMqAdapter
from idempotent.checkers import MemoryChecker
from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.worker.running import until


@pytest.fixture
def rabbit(rabbitmq_url):
    made = Rabbit(rabbitmq_url)
    yield made
    made.clean_up()


@pytest.mark.parametrize(
    "options", [{}, {"ack": "batched"}, {"pull": True}], ids=["manual", "batched", "pull"]
)
def test_messages_of_a_paused_consumer_are_in_their_queue(rabbit, options):
    slow, fast = (rabbit.declare(rabbit.name()) for _ in range(2))
    registry = Registry()
    for queue in (slow, fast):
        registry.consumer(queue, checker=MemoryChecker())(lambda _: None)
    for queue in (slow, fast):
        rabbit.send(*(Message(queue, id=f"{queue}-{n}") for n in range(5)))
    with closing(RabbitMqAdapter(rabbit.url, **options)) as adapter:
        adapter.open(tuple(registry.consumers.values()))
        found = []
        until(
            lambda: (
                found.extend(adapter.receive(1, 0.2))
                or {each.message.subject for each in found} == {slow, fast}
            )
        )
        adapter.paused_subjects = adapter.full_subjects = {slow}
        adapter.receive(0, 0.0)
        in_hand = [each for each in found if each.message.subject == slow]
        until(lambda: rabbit.depth(slow) == 5 - len(in_hand))
        until(lambda: found.extend(adapter.receive(10, 0.2)) or len(found) == len(in_hand) + 5)
        for each in found:  # what was in hand can be settled all the same
            adapter.settle(each, Result(Outcome.PROCESSED))
        adapter.receive(0, 0.0)
        assert adapter.stale_settlements == 0
        time.sleep(0.5)
        assert adapter.receive(10, 0.2) == []
        adapter.paused_subjects = adapter.full_subjects = frozenset()
        rest = []
        until(lambda: rest.extend(adapter.receive(10, 0.2)) or len(rest) == 5 - len(in_hand))
        for each in rest:
            adapter.settle(each, Result(Outcome.PROCESSED))
    assert rabbit.depth(slow) == rabbit.depth(fast) == 0


def test_a_worker_that_opens_while_it_is_paused_asks_for_nothing(rabbit):
    queue = rabbit.declare(rabbit.name())
    rabbit.send(Message(queue, id="1"))
    registry = Registry()
    registry.consumer(queue, checker=MemoryChecker())(lambda _: None)
    with closing(RabbitMqAdapter(rabbit.url)) as adapter:
        adapter.paused_subjects = adapter.full_subjects = {queue}
        adapter.open(tuple(registry.consumers.values()))
        assert adapter.receive(1, 0.5) == []
        assert rabbit.depth(queue) == 1
        adapter.paused_subjects = adapter.full_subjects = frozenset()
        found = []
        until(lambda: found.extend(adapter.receive(1, 0.2)) or found)
        assert found[0].message.redelivered is False


def test_what_each_pause_returns_counts_as_a_delivery_of_a_quorum_queue_before_4_3(rabbit):
    queue = rabbit.declare(rabbit.name(), **{"x-queue-type": "quorum"})
    rabbit.send(Message(queue, id="1"))
    registry = Registry()
    registry.consumer(queue, checker=MemoryChecker())(lambda _: None)
    with closing(RabbitMqAdapter(rabbit.url)) as adapter:
        adapter.open(tuple(registry.consumers.values()))
        for _ in range(2):
            until(lambda: adapter.receive(0, 0.1) == [] and rabbit.depth(queue) == 0)  # it was sent ahead
            adapter.paused_subjects = adapter.full_subjects = {queue}
            until(lambda: adapter.receive(0, 0.1) == [] and rabbit.depth(queue) == 1)
            time.sleep(0.5)  # however long it lasts
            adapter.paused_subjects = adapter.full_subjects = frozenset()
        found = []
        until(lambda: found.extend(adapter.receive(1, 0.2)) or found)
        counted = found[0].message.raw.properties.headers.get("x-delivery-count", 0)
        adapter.settle(found[0], Result(Outcome.PROCESSED))
    assert counted == (2 if rabbit.version < (4, 3) else 0)
