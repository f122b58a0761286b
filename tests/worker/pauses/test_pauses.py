"""A consumer that is paused while its worker works: nothing of it runs, the others go on, and nothing is lost."""

import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from idempotent import Message, Outcome, Registry, Worker
from idempotent.adapters import MemoryBroker
from idempotent.adapters.files import FileAdapter
from idempotent.checkers import MemoryChecker
from idempotent.checkers.pauses import Pauses
from idempotent.claims import ClaimRequest
from idempotent.errors import ConfigurationError, StoreError, StoreUnavailableError
from idempotent.keys import KeySpace
from tests.support.logs import logged
from tests.worker.running import SUBJECT, WAIT_S, Running, consumer_of, emptying, publish, until

OTHER = "mail"
NAME = f"{SUBJECT}:default"
SHORT_S = 0.05


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idempotent.worker.store_watch._EVERY_S", SHORT_S)
    monkeypatch.setattr("idempotent.worker.store_watch._EVERY_WHILE_DOWN_S", SHORT_S)


class Gate:
    """A handler that waits for the test."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.began: list[str] = []

    def __call__(self, message: Message) -> None:
        self.began.append(str(message.id))
        assert self.go.wait(WAIT_S)


class Switched(MemoryChecker):
    """A store that can be switched off, and whose clock is years behind."""

    is_down = False

    def __init__(self) -> None:
        super().__init__(clock=lambda: time.time() - 1e8)

    def ping(self) -> None:
        if self.is_down:
            raise StoreUnavailableError("connection refused")

    def admin(self):
        self.ping()
        return super().admin()


def pause(checker: MemoryChecker) -> None:
    assert Pauses(checker).pause(NAME, by="anna", note="OPS-12")[1]


def unsettled(broker: MemoryBroker) -> int:
    with broker._changed:
        return broker._queues[SUBJECT].unsettled


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "task"])
def test_handlers_that_run_finish_and_all_else_waits_in_the_broker(
    registry: Registry,
    broker: MemoryBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    is_async: bool,
    batch_size: int,
) -> None:
    gate, other, checker, health = Gate(), list[str | None](), Switched(), tmp_path / "health"
    consumer_of(registry, gate, is_async=is_async, checker=checker, concurrency=2)
    registry.consumer(OTHER, checker=MemoryChecker())(lambda message: other.append(message.id))
    publish(broker, *range(50))
    worker = emptying(registry, broker, concurrency=4, batch_size=batch_size, health_file=health)
    running = Running(worker)
    until(lambda: len(gate.began) == 2)
    pause(checker)
    until(lambda: worker.paused == {NAME})
    until(lambda: unsettled(broker) <= 2 * batch_size)  # what has not begun is given back
    until(lambda: health.read_text() == f"ready\npaused: {NAME}\n")
    gate.go.set()
    until(lambda: unsettled(broker) == 0)
    begun = len(gate.began)
    publish(broker, *range(100), subject=OTHER)
    until(lambda: len(other) == 100)
    assert len(gate.began) == begun <= 2 * batch_size
    assert broker.backlog(SUBJECT) == 50 - begun
    assert Pauses(checker).resume(NAME)
    summary = running.join().summary
    assert Counter(gate.began) == Counter(map(str, range(50)))
    assert summary[Outcome.PROCESSED] == summary.settled == 150
    assert not checker.attempts, "nothing is counted as an attempt"
    (said,) = logged(caplog, "consumer_paused")
    assert (said.consumer, said.by, said.note) == (NAME, "anna", "OPS-12")
    (said,) = logged(caplog, "consumer_resumed")
    assert (said.consumer, said.paused_by, said.note) == (NAME, "anna", "OPS-12")


def test_a_worker_that_starts_receives_nothing_of_a_paused_consumer(
    registry: Registry, broker: MemoryBroker
) -> None:
    gate, other, checker = Gate(), list[str | None](), MemoryChecker()
    gate.go.set()
    consumer_of(registry, gate, checker=checker)
    registry.consumer(OTHER, checker=checker)(lambda message: other.append(message.id))
    pause(checker)
    publish(broker, *range(20))
    publish(broker, *range(20), subject=OTHER)
    running = Running(emptying(registry, broker))
    until(lambda: len(other) == 20)
    assert (unsettled(broker), gate.began) == (0, [])
    assert Pauses(checker).resume(NAME)
    running.join()
    assert len(gate.began) == 20


def test_a_store_that_is_away_neither_ends_a_pause_nor_begins_one(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    gate, checker = Gate(), Switched()
    gate.go.set()
    consumer_of(registry, gate, checker=checker)
    worker = emptying(registry, broker)
    publish(broker, 0)
    checker.is_down = True
    running = Running(worker)  # it does not know whether the consumer is paused
    until(lambda: logged(caplog, "store_unusable"))
    pause_while_down(checker)
    publish(broker, 1)
    assert gate.began == []
    checker.is_down = False
    until(lambda: worker.paused)
    checker.is_down = True
    until(lambda: len(logged(caplog, "store_unusable")) == 2)
    time.sleep(10 * SHORT_S)
    assert (worker.paused, gate.began, unsettled(broker)) == ({NAME}, [], 0)
    checker.is_down = False
    assert Pauses(checker).resume(NAME)
    running.join()
    assert gate.began == ["0", "1"]


def pause_while_down(checker: Switched) -> None:
    """As somebody does for whom the store is there."""
    there = MemoryChecker()
    there.entries, there.attempts = checker.entries, checker.attempts
    pause(there)


def test_deliveries_that_are_held_go_back_and_are_not_checked_again(
    registry: Registry, broker: MemoryBroker
) -> None:
    gate, checker = Gate(), MemoryChecker()
    gate.go.set()
    consumer_of(registry, gate, checker=checker)
    elsewhere = checker.protocol.claim(ClaimRequest(KeySpace(SUBJECT, "default").key("held"))).claim
    assert elsewhere
    publish(broker, "held")
    worker = emptying(registry, broker)
    running = Running(worker)
    until(lambda: any(work.checks == 3 for _, _, work in worker._holds._heap))  # the next check is in 1.6 s
    pause(checker)
    until(lambda: worker.paused)
    time.sleep(0.3)
    assert not worker._holds
    assert broker.backlog(SUBJECT) == 1
    checker.protocol.release(elsewhere)
    time.sleep(10 * SHORT_S)
    assert gate.began == []
    assert Pauses(checker).resume(NAME)
    running.join()
    assert gate.began == ["held"]


def test_what_an_adapter_gives_all_the_same_waits_in_the_worker(registry: Registry, tmp_path: Path) -> None:
    """A file has its messages in one row, and its adapter keeps no subject back."""
    ran, checker, lines = list[str | None](), MemoryChecker(), tmp_path / "lines.jsonl"
    for subject in (SUBJECT, OTHER):
        registry.consumer(subject, checker=checker)(
            lambda message: ran.append(f"{message.subject}{message.id}")
        )
    both = [{"subject": subject, "id": str(number)} for number in range(20) for subject in (SUBJECT, OTHER)]
    lines.write_text("".join(f"{json.dumps(line)}\n" for line in both))
    pause(checker)
    running = Running(Worker(registry, FileAdapter(lines), gc_interval_s=None, max_held=30))
    until(lambda: len(ran) == 20)
    assert {each.rstrip("0123456789") for each in ran if each} == {OTHER}
    assert Pauses(checker).resume(NAME)
    running.join()
    assert Counter(ran) == Counter(f"{line['subject']}{line['id']}" for line in both)


def test_only_so_many_wait_in_the_worker(registry: Registry, tmp_path: Path) -> None:
    ran, checker, lines = list[str | None](), MemoryChecker(), tmp_path / "lines.jsonl"
    for subject in (SUBJECT, OTHER):
        registry.consumer(subject, checker=checker)(lambda message: ran.append(message.id))
    lines.write_text("".join(f'{{"subject": "{SUBJECT}", "id": "{n}"}}\n' for n in range(1000)))
    pause(checker)
    adapter = FileAdapter(lines)
    running = Running(Worker(registry, adapter, gc_interval_s=None, max_held=10))
    until(lambda: adapter._unsettled)
    time.sleep(10 * SHORT_S)
    assert len(adapter._unsettled) <= 12
    assert Pauses(checker).resume(NAME)
    running.join()
    assert len(ran) == 1000


def test_a_worker_that_stops_gives_back_what_waits_in_it(registry: Registry, broker: MemoryBroker) -> None:
    checker = MemoryChecker()
    consumer_of(registry, Gate(), checker=checker)
    pause(checker)
    publish(broker, *range(5))
    worker = emptying(registry, broker)
    running = Running(worker)
    until(lambda: worker.paused)
    worker.stop()
    assert running.join().summary.settled == 0
    assert broker.backlog(SUBJECT) == 5


@pytest.mark.parametrize(
    "error", [ConfigurationError("no admin"), StoreError("no right"), TypeError("a bug")]
)
def test_a_store_that_cannot_say_what_is_paused_holds_nothing_up(
    registry: Registry, broker: MemoryBroker, error: Exception
) -> None:
    class Mute(MemoryChecker):
        def admin(self):
            raise error

    done: list[str] = []
    consumer_of(registry, lambda message: done.append(str(message.id)), checker=Mute())
    publish(broker, "1", "2")
    assert emptying(registry, broker).run()[Outcome.PROCESSED] == 2
    assert sorted(done) == ["1", "2"]
