"""A worker asks its stores before the first message, and its readiness knows the answer."""

import threading
from pathlib import Path

import pytest

from idempotent import Registry, Worker
from idempotent.adapters import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.errors import SchemaError, StoreError, StoreUnavailableError
from idempotent.worker.store_watch import StoreWatch
from tests.support.logs import events, logged
from tests.worker.running import SUBJECT, WAIT_S, Running, publish, until


class Switched(MemoryChecker):
    """A store that can be switched off."""

    error: Exception | None = None

    def ping(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [SchemaError("no table"), StoreUnavailableError("wrong password")])
def test_with_fail_fast_a_worker_whose_store_cannot_be_used_ends(
    registry: Registry, broker: MemoryBroker, error: StoreError
) -> None:
    checker = Switched()
    checker.error = error
    registry.consumer(SUBJECT, checker=checker)(lambda _: None)
    publish(broker, "a")
    with pytest.raises(type(error), match=str(error)):
        Worker(registry, MemoryAdapter(broker, until_empty=True), fail_fast=True).run()
    assert broker.backlog(SUBJECT) == 1


def test_readiness_follows_the_store(
    registry: Registry,
    broker: MemoryBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("idempotent.worker.store_watch._EVERY_S", 0.05)
    monkeypatch.setattr("idempotent.worker.store_watch._EVERY_WHILE_DOWN_S", 0.05)
    checker, path = Switched(), tmp_path / "health"
    checker.error = StoreUnavailableError("wrong password")
    registry.consumer(SUBJECT, checker=checker)(lambda _: None)
    worker = Worker(registry, MemoryAdapter(broker), gc_interval_s=None, health_file=path)
    running = Running(worker)
    until(lambda: path.exists() and path.read_text() == "store\n")
    checker.error = None
    until(lambda: path.read_text() == "ready\n")
    checker.error = StoreUnavailableError("connection refused")
    until(lambda: path.read_text() == "store\n")
    worker.stop()
    running.join()
    events = [(record.event, getattr(record, "error", None)) for record in caplog.records]
    assert events == [
        ("store_unusable", "wrong password"),
        ("store_usable_again", None),
        ("store_unusable", "connection refused"),
    ], "each change is said once"


def test_nothing_is_received_for_a_store_that_has_not_answered_yet(
    registry: Registry,
    broker: MemoryBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("idempotent.worker.store_watch._ANSWER_S", 0.1)
    go = threading.Event()

    class Silent(MemoryChecker):
        def ping(self) -> None:
            assert go.wait(WAIT_S)

    path = tmp_path / "health"
    registry.consumer(SUBJECT, checker=Silent())(lambda _: None)
    publish(broker, "a")
    worker = Worker(registry, MemoryAdapter(broker), gc_interval_s=None, health_file=path)
    running = Running(worker)
    until(lambda: path.exists() and path.read_text() == "store\n")
    until(lambda: logged(caplog, "store_unusable"))  # the health file has it a moment before
    (said,) = logged(caplog, "store_unusable")
    assert said.error == "the store did not answer within 0.1 seconds"
    assert broker.backlog(SUBJECT) == 1, "its consumer may be paused"
    go.set()
    until(lambda: "store_usable_again" in events(caplog))
    until(lambda: not broker.backlog(SUBJECT))
    worker.stop()
    running.join()


def test_an_answer_just_in_time_is_not_followed_by_a_complaint() -> None:
    checker = MemoryChecker()
    with StoreWatch([checker]) as watch:
        watch._note_late(checker)  # its timer has fired, and the answer was first
        assert watch.ready


def test_after_the_end_a_store_that_is_still_silent_is_not_complained_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idempotent.worker.store_watch._EVERY_S", 0.0)
    monkeypatch.setattr("idempotent.worker.store_watch._LAST_WAIT_S", 0.0)
    asked_again, go = threading.Event(), threading.Event()

    class SilentLater(MemoryChecker):
        questions = 0

        def ping(self) -> None:
            self.questions += 1
            if self.questions > 1:
                asked_again.set()
                assert go.wait(WAIT_S)

    checker = SilentLater()
    with StoreWatch([checker]) as watch:
        assert asked_again.wait(WAIT_S)
    watch._note_late(checker)  # as its timer does
    go.set()
    assert "store_unusable" not in events(caplog)


def test_an_outage_is_logged_again_each_minute_with_its_length(caplog: pytest.LogCaptureFixture) -> None:
    now, checker = [0.0], Switched()
    checker.error = StoreUnavailableError("connection refused")
    watch = StoreWatch([checker], clock=lambda: now[0])
    for _ in range(130):
        watch._ask(checker)
        now[0] += 1
    checker.error = None
    watch._ask(checker)
    watch._ask(checker)
    said = [(record.event, record.__dict__["down_s"]) for record in caplog.records]
    assert said == [
        ("store_unusable", 0),
        ("store_unusable", 60),
        ("store_unusable", 120),
        ("store_usable_again", 130),
    ]
