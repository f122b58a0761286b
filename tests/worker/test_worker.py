"""The worker: nothing is acknowledged before the store's verdict, and nothing is lost when it stops."""

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from idempotent import Backoff, Consumer, Message, Outcome, Registry, Result, Worker
from idempotent.adapters import Delivery, MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.errors import ConfigurationError, StoreUnavailableError, UnknownCheckerError
from tests.support.logs import events
from tests.worker.running import SUBJECT, WAIT_S, Recording, Running, emptying, publish, until


def test_it_processes_what_there_is_and_says_what_became_of_it(
    registry: Registry, broker: MemoryBroker
) -> None:
    effects: list[str] = []

    @registry.consumer(
        SUBJECT,
        checker=MemoryChecker(),
        retry_for=TimeoutError,
        idempotent_for=KeyError,
        backoff=Backoff(0.01),
    )
    def handle(message: Message) -> None:
        if message.id == "harmless":
            raise KeyError
        if message.id == "fatal":
            raise ValueError("no such order")
        if message.id == "flaky" and "tried" not in effects:
            effects.append("tried")
            raise TimeoutError
        effects.append(str(message.id))

    publish(broker, "a", "b", "a", "harmless", "fatal", "flaky")
    broker.publish(Message(SUBJECT))
    seen: list[tuple[str | bytes | None, Outcome]] = []
    summary = emptying(registry, broker, on_result=lambda m, r: seen.append((m.id, r.outcome))).run()

    assert Counter(effects) == Counter(["a", "b", "tried", "flaky"])
    assert dict(summary.outcomes) == {
        Outcome.PROCESSED: 3,
        Outcome.DUPLICATE: 1,
        Outcome.IGNORED: 1,
        Outcome.DEAD: 1,
        Outcome.FAILED: 1,
        Outcome.REJECTED: 1,
    }
    assert summary.settled == len(seen) == 8
    assert ("fatal", Outcome.DEAD) in seen
    assert {dead.message.id: dead.reason.split(":")[0] for dead in broker.dead_letters(SUBJECT)} == {
        "fatal": "ValueError",
        None: "MissingKeyError",
    }


@pytest.mark.parametrize("batch_size", [1, 50])
def test_each_of_2000_messages_has_one_effect_whatever_the_broker_does(
    registry: Registry, batch_size: int
) -> None:
    broker = MemoryBroker(seed=5, duplicate_rate=0.3, reorder_window=100, redeliver_rate=0.2)
    effects: Counter[str] = Counter()
    lock = threading.Lock()

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    def handle(message: Message) -> None:
        with lock:
            effects[str(message.id)] += 1

    publish(broker, *range(2000))
    workers = [Running(emptying(registry, broker, concurrency=4, batch_size=batch_size)) for _ in range(2)]
    for _ in range(5):
        time.sleep(random.uniform(0.0, 0.02))
        broker.crash()
    for running in workers:
        running.join()
        assert running.error is None
    assert effects == Counter({str(number): 1 for number in range(2000)})
    assert sum(running.summary[Outcome.DUPLICATE] for running in workers) > 500


def test_without_a_working_checker_the_same_faults_do_repeat_effects(registry: Registry) -> None:
    """The control experiment: the test above can fail."""
    broker = MemoryBroker(seed=5, duplicate_rate=0.3, reorder_window=100, redeliver_rate=0.2)
    effects: list[str] = []

    @registry.consumer(SUBJECT, checker=MemoryChecker(max_keys=20))
    def handle(message: Message) -> None:
        effects.append(str(message.id))

    publish(broker, *range(2000))
    emptying(registry, broker, concurrency=4).run()
    assert len(effects) > 2200


def test_handlers_run_at_once_and_no_more_is_received_than_a_bound(
    registry: Registry, broker: MemoryBroker
) -> None:
    inside = threading.Barrier(4)
    gate = threading.Event()

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    def handle(_message: Message) -> None:
        if not gate.is_set():
            inside.wait(WAIT_S)
            gate.wait(WAIT_S)

    publish(broker, *range(100))
    adapter = MemoryAdapter(broker, until_empty=True)
    taken: list[Delivery] = []
    receive = adapter.receive
    adapter.receive = lambda limit, timeout_s: (taken.extend(got := receive(limit, timeout_s)), got)[1]  # type: ignore[method-assign,func-returns-value]
    running = Running(Worker(registry, adapter, concurrency=4))
    until(lambda: inside.broken or len(taken) >= 8)
    time.sleep(0.2)
    assert len(taken) == 8
    gate.set()
    assert running.join().summary[Outcome.PROCESSED] == 100


def test_under_load_batches_fill_and_messages_of_two_consumers_never_mix(
    registry: Registry, broker: MemoryBroker
) -> None:
    batches: list[list[Message]] = []

    @registry.consumer("a", checker=MemoryChecker(), batch=True)
    def handle_a(messages: list[Message]) -> None:
        batches.append(messages)

    @registry.consumer("b", checker=MemoryChecker(), batch=True)
    def handle_b(messages: list[Message]) -> None:
        batches.append(messages)

    for subject in ("a", "b"):
        publish(broker, *range(500), subject=subject)
    assert emptying(registry, broker, batch_size=50).run()[Outcome.PROCESSED] == 1000
    assert all(len({message.subject for message in batch}) == 1 for batch in batches)
    assert max(map(len, batches)) == 50
    assert len(batches) < 60


def test_messages_of_a_subject_nobody_consumes_are_dead_letters(
    registry: Registry, broker: MemoryBroker
) -> None:
    class Careless(MemoryAdapter):
        def open(self, consumers: Sequence[Consumer]) -> None:
            super().open(consumers)
            self._subjects = [*self._subjects, "strange"]

    registry.consumer(SUBJECT, checker=MemoryChecker())(lambda _: None)
    publish(broker, "a", subject="strange")
    assert Worker(registry, Careless(broker, until_empty=True)).run()[Outcome.REJECTED] == 1
    (dead,) = broker.dead_letters("strange")
    assert "no consumer of subject 'strange'; known: orders" in dead.reason


def test_a_hook_that_fails_is_logged_and_the_messages_go_on(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    registry.consumer(SUBJECT, checker=MemoryChecker())(lambda _: None)
    publish(broker, "a", "b")

    def hook(_message: Message, _result: Result) -> None:
        raise ZeroDivisionError

    assert emptying(registry, broker, on_result=hook).run().settled == 2
    assert events(caplog).count("on_result_failed") == 2


def test_expired_keys_are_collected_now_and_then_and_a_failure_is_only_logged(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    checker = MemoryChecker(retention_s=10.0, clock=lambda: now[0])

    class Failing(MemoryChecker):
        def _garbage_collect(self, limit: int) -> int:
            raise StoreUnavailableError("connection refused")

    registry.consumer(SUBJECT, checker=checker)(lambda _: None)
    registry.consumer("b", checker=Failing())(lambda _: None)
    publish(broker, *range(5))
    worker = Worker(registry, MemoryAdapter(broker), gc_interval_s=0.05)
    running = Running(worker)
    until(lambda: broker.backlog(SUBJECT) == 0)
    now[0] += 11.0
    until(lambda: not [e for e in checker.entries.values() if e.expires_at < now[0]])
    until(lambda: "gc_failed" in events(caplog))
    worker.stop()
    running.join()


def no_consumers(_registry: Registry) -> None:
    pass


def unknown_checker(registry: Registry) -> None:
    registry.consumer(SUBJECT, checker="orders-db")(lambda _: None)


def two_groups(registry: Registry) -> None:
    for group in ("billing", "mail"):
        registry.consumer(SUBJECT, group=group, checker=MemoryChecker())(lambda _: None)


def parking(registry: Registry) -> None:
    registry.consumer(SUBJECT, checker=MemoryChecker(), on_expired_lease="park")(lambda _: None)


@pytest.mark.parametrize(
    ("prepare", "options", "message"),
    [
        (no_consumers, {}, "no consumers to serve"),
        (unknown_checker, {}, "no checker is named 'orders-db'; known: none"),
        (two_groups, {}, r"same queue or topic, orders, and.*consumers=\['orders:billing'\]"),
        (parking, {"batch_size": 2}, "on_expired_lease other than 'retry' cannot go with batch_size=2"),
        (parking, {"consumers": ["orders:x"]}, "no consumer is named orders:x; known: orders:default"),
        (parking, {"concurrency": 0}, "concurrency must be a whole number, at least 1"),
        (parking, {"drain_timeout_s": -1}, "drain_timeout_s must be seconds from 0"),
    ],
)
def test_what_cannot_work_is_refused_before_the_adapter_is_opened(
    registry: Registry, broker: MemoryBroker, prepare, options: dict, message: str
) -> None:
    prepare(registry)
    adapter = Recording(broker)
    with pytest.raises(ConfigurationError, match=message) as caught:
        Worker(registry, adapter, **options).run()
    assert (caught.type is UnknownCheckerError) == (prepare is unknown_checker)
    assert "open" not in adapter.events


def test_one_group_of_two_can_be_chosen(registry: Registry, broker: MemoryBroker) -> None:
    two_groups(registry)
    publish(broker, "a")
    assert emptying(registry, broker, consumers=["orders:mail"]).run().settled == 1


def test_a_worker_that_gets_too_few_threads_says_so_and_closes_its_adapter(
    registry: Registry, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "idempotent-handler-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    def handle(_message: Message) -> None: ...

    class Closing(MemoryAdapter):
        is_closed = False

        def close(self) -> None:
            self.is_closed = True
            super().close()

    monkeypatch.setattr(threading.Thread, "start", refuse)
    adapter = Closing(broker)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Worker(registry, adapter, concurrency=4).run()
    assert adapter.is_closed
    assert not [each for each in threading.enumerate() if each.name.startswith("idempotent-handler")]
