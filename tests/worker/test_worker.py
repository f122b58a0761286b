"""The worker: nothing is acknowledged before the store's verdict, and nothing is lost when it stops."""

import gc
import logging
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from idempotent import Backoff, Consumer, Message, Outcome, Registry, Result, Worker
from idempotent.adapters import Adapter, Delivery, MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.claims import ClaimRequest
from idempotent.errors import AdapterError, ConfigurationError, StoreUnavailableError, UnknownCheckerError
from idempotent.worker.python_gc import relaxed_python_gc

SUBJECT = "orders"
WAIT_S = 10.0


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def registry() -> Registry:
    return Registry()


def publish(broker: MemoryBroker, *ids: object, subject: str = SUBJECT) -> None:
    for each in ids:
        broker.publish(Message(subject, id=str(each)))


def emptying(registry: Registry, broker: MemoryBroker, **options) -> Worker:
    return Worker(registry, MemoryAdapter(broker, until_empty=True), gc_interval_s=None, **options)


class Running:
    """A worker in a thread of its own."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.summary = self.worker.run()
        except BaseException as error:
            self.error = error

    def join(self) -> "Running":
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive(), "the worker does not stop"
        return self


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


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


class Held(MemoryChecker):
    """Somebody else's claim, for as long as a test wants it."""

    def hold(self, consumer: Consumer, message_id: str) -> Callable[[], object]:
        claim = self.desk.claim(ClaimRequest(consumer.key_of(message_id))).claim
        assert claim is not None
        return lambda: self.desk.complete(claim)


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again soon, not when the other's lease ends."""
    monkeypatch.setattr("idempotent.processing.results._LONGEST_WAIT_S", 0.02)
    monkeypatch.setattr("idempotent.processing.results._SHORTEST_WAIT_S", 0.02)


def test_a_message_in_progress_elsewhere_is_held_and_acked_once_the_other_is_done(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    broker = MemoryBroker(max_deliveries=2)  # contention must not use it up
    checker = Held()
    effects: list[str] = []
    consumer = registry.consumer(SUBJECT, checker=checker, max_attempts=1)(lambda m: effects.append(m.id))
    finish = checker.hold(consumer, "a")
    publish(broker, "a", "b")
    running = Running(emptying(registry, broker))
    until(lambda: effects == ["b"])
    time.sleep(1.0)  # some fifty looks
    assert broker.backlog(SUBJECT) == 1, "it must not be acknowledged while its effect is not certain"
    finish()
    summary = running.join().summary
    assert effects == ["b"]
    assert dict(summary.outcomes) == {Outcome.PROCESSED: 1, Outcome.DUPLICATE: 1}
    assert summary.requeued == 1
    assert not broker.dead_letters(SUBJECT)
    assert not checker.keys.attempts


def test_held_deliveries_bound_what_is_received(
    registry: Registry, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    checker = Held()
    consumer = registry.consumer(SUBJECT, checker=checker)(lambda _: None)
    finishes = [checker.hold(consumer, str(number)) for number in range(100)]
    publish(broker, *range(100))
    adapter = MemoryAdapter(broker, until_empty=True)
    running = Running(Worker(registry, adapter, max_held=10))
    time.sleep(0.5)
    with broker._changed:
        assert broker._queues[SUBJECT].unsettled <= 12
    for finish in finishes:
        finish()
    assert running.join().summary[Outcome.DUPLICATE] == 100


def test_a_store_that_is_down_costs_no_message_and_no_attempt(
    registry: Registry, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idempotent.processing.results.STORE_RETRY_S", 0.02)

    class Flaky(MemoryChecker):
        down = True

        def _claim(self, request: ClaimRequest):
            if self.down:
                raise StoreUnavailableError("connection refused")
            return super()._claim(request)

    checker = Flaky()
    registry.consumer(SUBJECT, checker=checker, max_attempts=1)(lambda _: None)
    publish(broker, *range(20))
    running = Running(emptying(registry, broker))
    time.sleep(0.3)
    assert broker.backlog(SUBJECT) == 20
    checker.down = False
    assert running.join().summary[Outcome.PROCESSED] == 20


class Recording(MemoryAdapter):
    """Notes what happens, in order and in which thread."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, until_empty=True)
        self.events: list[str] = []
        self.threads: set[threading.Thread] = set()

    def _note(self, event: str) -> None:
        self.events.append(event)
        self.threads.add(threading.current_thread())

    def open(self, consumers: Sequence[Consumer]) -> None:
        self._note("open")
        super().open(consumers)

    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        self.threads.add(threading.current_thread())
        return super().receive(limit, timeout_s)

    def _acknowledge(self, delivery: Delivery, result: Result) -> bool:
        self._note(f"ack {delivery.message.id}")
        return super()._acknowledge(delivery, result)

    def _delay(self, delivery: Delivery, after_s: float) -> bool:
        self._note(f"delay {delivery.message.id}")
        return super()._delay(delivery, after_s)

    def _dead_letter(self, delivery: Delivery, result: Result) -> bool:
        self._note(f"dead_letter {delivery.message.id}")
        return super()._dead_letter(delivery, result)

    def _give_back(self, delivery: Delivery) -> bool:
        self._note(f"requeue {delivery.message.id}")
        return super()._give_back(delivery)

    def close(self) -> None:
        self._note("close")
        super().close()


def test_one_thread_owns_the_adapter_and_acks_follow_the_effect_on_record(
    registry: Registry, broker: MemoryBroker
) -> None:
    adapter = Recording(broker)

    class Noting(MemoryChecker):
        def _complete(self, completion):
            done = super()._complete(completion)
            adapter.events.append(f"done {completion.claim.key.text.rpartition(':')[2]}")
            return done

    registry.consumer(SUBJECT, checker=Noting())(lambda m: adapter.events.append(f"run {m.id}"))
    publish(broker, *range(50))
    Worker(registry, adapter, concurrency=4).run()
    assert adapter.threads == {threading.current_thread()}
    for number in range(50):
        order = [adapter.events.index(f"{what} {number}") for what in ("run", "done", "ack")]
        assert order == sorted(order)
    assert (adapter.events[0], adapter.events[-1]) == ("open", "close")


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
    registry: Registry, broker: MemoryBroker
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
    assert not [entry for entry in checker.keys.entries.values() if entry.status.in_progress]
    assert not checker.keys.attempts


def test_a_crash_of_the_adapter_stops_the_worker_but_not_before_the_handlers_are_done(
    registry: Registry, broker: MemoryBroker
) -> None:
    class Failing(MemoryAdapter):
        broken = False

        def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
            if self.broken:
                raise AdapterError("the broker is gone")
            return super().receive(limit, timeout_s)

        def _give_back(self, delivery: Delivery) -> bool:
            raise AdapterError("the broker is gone")

    running_now, gate, effects = threading.Event(), threading.Event(), []

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
    time.sleep(0.1)
    gate.set()
    running.join()
    assert isinstance(running.error, AdapterError)
    assert effects == ["0"]
    assert emptying(registry, broker).run().outcomes == {Outcome.PROCESSED: 4, Outcome.DUPLICATE: 1}


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
    assert [record.message for record in caplog.records].count("on_result_failed") == 2


def test_logs_name_the_event_and_never_hold_a_body(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    @registry.consumer(SUBJECT, checker=MemoryChecker(), retry_for=())
    def handle(message: Message) -> None:
        raise ValueError(message.body)

    broker.publish(Message(SUBJECT, b"credit card", id="a", headers={"token": "credit card"}))
    with caplog.at_level(logging.DEBUG):
        emptying(registry, broker).run()
    events = [record.message for record in caplog.records]
    assert events == ["worker_started", "message_dead", "worker_stopped"]
    assert not [record for record in caplog.records if "credit card" in str(record.__dict__)]


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
    until(lambda: not [e for e in checker.keys.entries.values() if e.expires_at < now[0]])
    until(lambda: "gc_failed" in [record.message for record in caplog.records])
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
        (two_groups, {}, r"one group of a subject.*consumers=\['orders:billing'\]"),
        (parking, {"batch_size": 2}, "on_expired_lease other than 'retry' cannot go with batch_size=2"),
        (parking, {"consumers": ["orders:x"]}, "no consumer is named orders:x; known: orders:default"),
        (parking, {"concurrency": 0}, "concurrency must be at least 1"),
        (parking, {"drain_timeout_s": -1}, "drain_timeout_s must not be negative"),
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


PROGRAM = """
import os, signal, sys, time
from idempotent import Message, Registry, Worker
from idempotent.adapters import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker

registry = Registry()

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # whole lines, whichever thread

@registry.consumer("orders", checker=MemoryChecker())
def handle(message):
    say("started", message.id)
    time.sleep(float(sys.argv[1]))
    say("finished", message.id)

class Talking(MemoryAdapter):
    def _acknowledge(self, delivery, result):
        settled = super()._acknowledge(delivery, result)
        say("ack", delivery.message.id)
        return settled

    def _give_back(self, delivery):
        settled = super()._give_back(delivery)
        say("requeue", delivery.message.id)
        return settled

signal.signal(signal.SIGTERM, lambda *_: say("theirs"))
broker = MemoryBroker()
for number in range(10):
    broker.publish(Message("orders", id=str(number)))
summary = Worker(registry, Talking(broker), concurrency=2).run()
say("backlog", broker.backlog("orders"), "abandoned", summary.abandoned)
signal.raise_signal(signal.SIGTERM)
"""


@pytest.fixture
def child(request: pytest.FixtureRequest):
    command = [sys.executable, "-W", "error", "-c", PROGRAM, request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert {process.stdout.readline(), process.stdout.readline()} == {"started 0\n", "started 1\n"}
        yield process
        process.kill()


@pytest.mark.parametrize("child", ["0.7"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_worker_and_then_the_handlers_of_before_are_back(
    child: subprocess.Popen, number: signal.Signals
) -> None:
    child.send_signal(number)
    output, _ = child.communicate(timeout=WAIT_S)
    events = output.splitlines()
    assert sorted(events[:2]) == ["requeue 2", "requeue 3"]
    assert sorted(events[2:6]) == ["ack 0", "ack 1", "finished 0", "finished 1"]
    assert events[6:] == ["backlog 8 abandoned 0", "theirs"]
    assert child.returncode == 0


@pytest.mark.parametrize("child", ["60"], indirect=True)
def test_a_second_signal_ends_it_at_once(child: subprocess.Popen) -> None:
    assert child.stdout is not None
    child.terminate()
    assert child.stdout.readline().startswith("requeue")
    child.terminate()
    output, _ = child.communicate(timeout=WAIT_S)
    assert output.splitlines()[-2:] == ["backlog 10 abandoned 2", "theirs"]
    assert child.returncode == 0


def test_an_adapter_needs_nothing_but_the_common_face(registry: Registry) -> None:
    """A broker of one's own: no wake, no end; the worker still settles soon."""

    class Own(Adapter):
        def __init__(self) -> None:
            self.waiting = [Message(SUBJECT, id=str(number)) for number in range(20)]
            self.settled = 0

        def open(self, consumers: Sequence[Consumer]) -> None:
            pass

        def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
            taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
            if not taken:
                time.sleep(timeout_s)
            return [Delivery(message) for message in taken]

        def _acknowledge(self, delivery: Delivery, result: Result) -> bool:
            self.settled += 1
            return True

        def _delay(self, delivery: Delivery, after_s: float) -> bool:
            return self._give_back(delivery)

        def _dead_letter(self, delivery: Delivery, result: Result) -> bool:
            raise AssertionError("no message fails here")

        def _give_back(self, delivery: Delivery) -> bool:
            self.waiting.append(delivery.message)
            return True

        def publish(self, message: Message) -> None:
            self.waiting.append(message)

        def close(self) -> None:
            pass

    registry.consumer(SUBJECT, checker=MemoryChecker())(lambda _: None)
    adapter = Own()
    worker = Worker(registry, adapter)
    running = Running(worker)
    until(lambda: adapter.settled == 20)
    worker.stop()
    assert running.join().summary.settled == 20


def test_a_batch_on_its_way_starts_no_garbage_collection_and_the_threshold_comes_back(registry, broker):
    before, during = gc.get_threshold(), []

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    def look(_):
        during.append(gc.get_threshold()[0])

    publish(broker, *range(3))
    emptying(registry, broker, batch_size=500).run()
    assert set(during) == {64 * 2 * 500}
    assert gc.get_threshold() == before


@pytest.mark.parametrize("chosen", [(0, 10, 10), (1_000_000, 5, 5)], ids=["none", "higher"])
def test_an_applications_own_threshold_of_the_collector_is_kept(registry, broker, chosen):
    before, during = gc.get_threshold(), []

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    def look(_):
        during.append(gc.get_threshold())

    publish(broker, 1)
    gc.set_threshold(*chosen)
    try:
        emptying(registry, broker, batch_size=500).run()
    finally:
        gc.set_threshold(*before)
    assert during == [chosen]


def test_workers_side_by_side_share_the_highest_threshold():
    before = gc.get_threshold()
    with relaxed_python_gc(1000):
        with relaxed_python_gc(5000):
            assert gc.get_threshold()[0] == 64 * 5000
        assert gc.get_threshold()[0] == 64 * 1000
    assert gc.get_threshold() == before
