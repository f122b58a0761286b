"""How a worker ends: a stop, a signal, an exit inside a handler, a crash of its adapter."""

import threading
import time

import pytest

from idempotent import Message, Outcome, Registry, Worker
from idempotent.adapters import Delivery, MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError, ConfigurationError
from tests.support.logs import logged
from tests.worker.running import SUBJECT, WAIT_S, Recording, Running, consumer_of, emptying, publish, until


def test_stop_finishes_what_runs_and_requeues_the_rest(registry: Registry, broker: MemoryBroker) -> None:
    adapter = Recording(broker)
    running_now, gate = threading.Event(), threading.Event()

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    def handle(_message: Message) -> None:
        running_now.set()
        gate.wait(WAIT_S)

    publish(broker, *range(10))
    worker = Worker(registry, adapter)
    running = Running(worker)
    assert running_now.wait(WAIT_S)
    until(lambda: broker._queues[SUBJECT].unsettled == 2)
    worker.stop()
    until(lambda: "requeue 1" in adapter.events)
    gate.set()
    summary = running.join().summary
    assert adapter.events == ["open", "requeue 1", "ack 0", "close"]
    assert (summary.settled, summary.requeued, summary.abandoned) == (1, 1, 0)
    assert broker.backlog(SUBJECT) == 9


def test_a_handler_that_outlasts_the_drain_time_is_left_and_its_message_comes_again(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    running_now, gate = threading.Event(), threading.Event()

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    def handle(_message: Message) -> None:
        running_now.set()
        gate.wait(WAIT_S)

    publish(broker, "a")
    worker = emptying(registry, broker, drain_timeout_s=0.1)
    running = Running(worker)
    assert running_now.wait(WAIT_S)
    worker.stop()
    assert running.join().summary.abandoned == 1
    assert broker.backlog(SUBJECT) == 1
    gate.set()
    (said,) = [vars(record) for record in logged(caplog, "drain_timed_out")]
    assert (said["running"], said["keys"], said["waiting"]) == (1, ["orders:default:a"], 0)
    assert "drain_timeout_s" in str(said["hint"])


@pytest.mark.parametrize("is_async", [False, True])
def test_the_log_does_not_name_what_waits_for_a_handler_that_outlasts_the_drain_time(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    running_now, gate = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        if message.id == "hangs":
            running_now.set()
            gate.wait(WAIT_S)

    consumer_of(registry, handle, is_async=is_async)
    publish(broker, "a", "hangs", "b")
    worker = emptying(registry, broker, drain_timeout_s=0.1, batch_size=3)
    running = Running(worker)
    assert running_now.wait(WAIT_S)
    until(lambda: len(worker._pool.running) == 3)
    worker.stop()
    until(lambda: logged(caplog, "drain_timed_out"))
    gate.set()
    running.join()
    (said,) = [vars(record) for record in logged(caplog, "drain_timed_out")]
    assert (said["running"], said["keys"]) == (1, ["orders:default:hangs"])
    assert said["waiting"] == 2


def test_a_stop_that_comes_before_run_is_not_lost_and_a_worker_runs_once(
    registry: Registry, broker: MemoryBroker
) -> None:
    registry.consumer(SUBJECT, checker=MemoryChecker())(lambda _: None)
    worker = Worker(registry, MemoryAdapter(broker))
    worker.stop()
    assert worker.run().settled == 0
    with pytest.raises(ConfigurationError, match="runs once"):
        worker.run()


@pytest.mark.parametrize("batch_size", [1, 10])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_inside_a_handler_stops_the_worker_and_its_message_comes_again(
    registry: Registry, broker: MemoryBroker, error: type[BaseException], batch_size: int
) -> None:
    checker = MemoryChecker()

    @registry.consumer(SUBJECT, checker=checker)
    def handle(message: Message) -> None:
        if message.id == "3":
            raise error

    publish(broker, *range(100))
    adapter = Recording(broker)
    with pytest.raises(error):
        Worker(registry, adapter, batch_size=batch_size).run()
    assert "requeue 3" in adapter.events
    with broker._changed:
        assert broker._queues[SUBJECT].unsettled == 0
    assert broker.backlog(SUBJECT) >= 80
    assert not [entry for entry in checker.entries.values() if entry.status.in_progress]
    assert not checker.attempts


def test_a_crash_of_the_adapter_stops_the_worker_but_not_before_the_handlers_are_done(
    registry: Registry, broker: MemoryBroker
) -> None:
    class Failing(MemoryAdapter):
        broken = False

        def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
            if self.broken:
                crashed.set()
                raise AdapterError("the broker is gone")
            return super().receive(limit, timeout_s)

        def _give_back(self, delivery: Delivery) -> bool:
            raise AdapterError("the broker is gone")

    running_now, crashed, gate, effects = threading.Event(), threading.Event(), threading.Event(), []

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    def handle(message: Message) -> None:
        running_now.set()
        gate.wait(WAIT_S)
        effects.append(message.id)

    publish(broker, *range(5))
    adapter = Failing(broker)
    running = Running(Worker(registry, adapter))
    assert running_now.wait(WAIT_S)
    adapter.broken = True
    assert crashed.wait(WAIT_S)
    time.sleep(0.1)
    gate.set()
    running.join()
    assert isinstance(running.error, AdapterError)
    # A busy machine may stop the worker a handler later.
    done = len(effects)
    assert effects[0] == "0"
    assert done < 5
    assert emptying(registry, broker).run().outcomes == {
        Outcome.PROCESSED: 5 - done,
        Outcome.DUPLICATE: done,
    }
