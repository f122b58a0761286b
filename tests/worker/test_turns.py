"""A slow consumer, or one whose store is down, does not delay the others."""

import threading
import time

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.adapters import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.claims import ClaimRequest
from idempotent.errors import ConfigurationError, StoreUnavailableError
from idempotent.worker import Worker
from tests.worker.running import WAIT_S, Running, emptying, publish, until

SLOW, FAST = "slow", "fast"


class Slow:
    """A handler that waits for the test."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self, _: Message) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        assert self.go.wait(WAIT_S)
        with self._lock:
            self.running -= 1


def test_a_consumer_that_blocks_its_threads_leaves_the_others_theirs(
    registry: Registry, broker: MemoryBroker
) -> None:
    slow, fast = Slow(), list[str | None]()
    registry.consumer(SLOW, checker=MemoryChecker(), concurrency=2)(slow)
    registry.consumer(FAST, checker=MemoryChecker())(lambda m: fast.append(m.id))
    publish(broker, *range(60), subject=SLOW)
    running = Running(emptying(registry, broker, concurrency=4))
    until(lambda: slow.running == 2)
    publish(broker, *range(30), subject=FAST)
    until(lambda: len(fast) == 30)
    assert slow.most == 2
    assert broker.backlog(SLOW) == 60
    slow.go.set()
    assert running.join().summary[Outcome.PROCESSED] == 90
    assert slow.most == 2


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_slow_consumer_takes_from_the_broker_what_can_run_soon(
    registry: Registry, broker: MemoryBroker, batch_size: int
) -> None:
    slow = Slow()
    registry.consumer(SLOW, checker=MemoryChecker(), concurrency=1)(slow)
    registry.consumer(FAST, checker=MemoryChecker())(lambda _: None)
    publish(broker, *range(60), subject=SLOW)
    running = Running(emptying(registry, broker, concurrency=4, batch_size=batch_size))
    until(lambda: slow.running == 1)
    publish(broker, *range(30), subject=FAST)
    until(lambda: not broker.backlog(FAST))
    with broker._changed:
        # Its share, and at most one `receive` for the whole pool before it was full.
        assert broker._queues[SLOW].unsettled <= (2 + 8) * batch_size
    slow.go.set()
    running.join()


def test_a_consumer_whose_store_is_down_does_not_stop_the_others(
    registry: Registry, broker: MemoryBroker
) -> None:
    class Down(MemoryChecker):
        is_down = True

        def _claim(self, request: ClaimRequest):
            if self.is_down:
                raise StoreUnavailableError("connection refused")
            return super()._claim(request)

    down, fast = Down(), list[str | None]()
    registry.consumer(SLOW, checker=down)(lambda _: None)
    registry.consumer(FAST, checker=MemoryChecker())(lambda m: fast.append(m.id))
    publish(broker, *range(60), subject=SLOW)
    adapter = MemoryAdapter(broker, until_empty=True)
    worker = Worker(registry, adapter, concurrency=2, max_held=10, gc_interval_s=None)
    running = Running(worker)
    until(lambda: SLOW in adapter.full_subjects)
    publish(broker, *range(30), subject=FAST)
    until(lambda: len(fast) == 30)
    with broker._changed:
        assert broker._queues[SLOW].unsettled < 30
    worker.stop()
    running.join()
    assert broker.backlog(SLOW) == 60


def test_a_limit_above_the_worker_s_concurrency_changes_nothing(
    registry: Registry, broker: MemoryBroker
) -> None:
    slow = Slow()
    registry.consumer(SLOW, checker=MemoryChecker(), concurrency=50)(slow)
    publish(broker, *range(20), subject=SLOW)
    running = Running(emptying(registry, broker, concurrency=3))
    until(lambda: slow.running == 3)
    time.sleep(0.1)
    assert slow.most == 3
    slow.go.set()
    assert running.join().summary[Outcome.PROCESSED] == 20


@pytest.mark.parametrize("concurrency", [0, -1])
def test_a_limit_below_one_is_refused(registry: Registry, concurrency: int) -> None:
    with pytest.raises(ConfigurationError, match="concurrency must be a whole number, at least 1"):
        registry.consumer(SLOW, checker=MemoryChecker(), concurrency=concurrency)
