"""A member of a Kafka group, and what tests do with it."""

import threading
from contextlib import contextmanager

from idempotent import Outcome, Registry, Result, Worker
from idempotent.checkers import MemoryChecker
from idempotent.testing.adapter_contract import AdapterContract

ACK = Result(Outcome.PROCESSED)
GROUP = "billing"
# As small as the test broker lets it be: a group misses a member after a second and a half.
IMPATIENT = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300, "max.poll.interval.ms": 1500}
receive = AdapterContract.receive
nothing_comes = AdapterContract.nothing_comes


def nothing(_):
    """A handler."""


@contextmanager
def working(adapter, topic, handler, *, group=GROUP, checker=None, concurrency=1, batch_size=1, **options):
    registry = Registry()
    registry.consumer(topic, group=group, checker=checker or MemoryChecker(), **options)(handler)
    worker = Worker(registry, adapter, concurrency, batch_size, gc_interval_s=None)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(150)
        assert not thread.is_alive()


def send(broker, topic, count, **options):
    for number in range(count):
        broker.send(topic, str(number).encode(), **options)
    broker.flush()


def bodies(deliveries):
    return [int(delivery.message.body) for delivery in deliveries]
