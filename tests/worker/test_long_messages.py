"""A message that takes very long, perhaps for ever, is named in the log while it does."""

import threading
from pathlib import Path
from typing import Any

import pytest

from idempotent import Message, Outcome, Registry, Worker
from idempotent.adapters import MemoryAdapter, MemoryBroker
from tests.support.logs import logged
from tests.worker.running import SUBJECT, WAIT_S, Running, consumer_of, emptying, publish, until


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idempotent.worker.message_log._LOOK_EVERY_S", 0.01)
    monkeypatch.setattr("idempotent.worker.message_log._TAKES_LONG_S", 0.2)


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


def lines(caplog: pytest.LogCaptureFixture, name: str | None = None) -> list[dict[str, Any]]:
    found = [vars(record) for record in logged(caplog, "message_takes_long")]
    return [line for line in found if name in (None, line["message_id"])]


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_that_hangs_is_named_rarely_and_alone(
    registry: Registry,
    broker: MemoryBroker,
    caplog: pytest.LogCaptureFixture,
    gate: threading.Event,
    is_async: bool,
    batch_size: int,
) -> None:
    consumer_of(registry, lambda message: message.id != "hangs" or gate.wait(WAIT_S), is_async=is_async)
    publish(broker, "a", "hangs", "b")
    running = Running(emptying(registry, broker, concurrency=3, batch_size=batch_size))
    until(lambda: len(lines(caplog)) == 3)
    gate.set()
    assert running.join().summary[Outcome.PROCESSED] == 3
    for number, line in enumerate(lines(caplog)):
        assert (line["consumer"], line["key"]) == ("orders:default", "orders:default:hangs")
        assert (line["message_id"], line["levelname"]) == ("hangs", "WARNING")
        assert line["running_s"] >= 0.2 * 2**number


@pytest.mark.parametrize("is_async", [False, True])
def test_a_batch_handler_that_hangs_is_one_line(
    registry: Registry,
    broker: MemoryBroker,
    caplog: pytest.LogCaptureFixture,
    gate: threading.Event,
    is_async: bool,
) -> None:
    consumer_of(registry, lambda _messages: gate.wait(WAIT_S), is_async=is_async, batch=True)
    publish(broker, *"abc")
    running = Running(emptying(registry, broker, batch_size=3))
    until(lambda: lines(caplog))
    gate.set()
    running.join()
    assert (lines(caplog)[0]["message_id"], lines(caplog)[0]["messages"]) == ("a", 3)
    assert not lines(caplog, "b") + lines(caplog, "c")


def test_health_says_how_many_in_a_second_line_and_stays_ready(
    registry: Registry, broker: MemoryBroker, gate: threading.Event, tmp_path: Path
) -> None:
    consumer_of(registry, lambda message: message.id == "a" or gate.wait(WAIT_S))
    publish(broker, "a", "h1", "h2")
    health = tmp_path / "health"
    worker = Worker(registry, MemoryAdapter(broker), concurrency=3, gc_interval_s=None, health_file=health)
    running = Running(worker)
    until(lambda: health.exists() and health.read_text() == "ready\nlong messages: 2\n")
    gate.set()
    until(lambda: health.read_text() == "ready\n")
    worker.stop()
    running.join()


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("how", [{}, {"batch": True}, {"on_missing_key": "process"}])
def test_nothing_is_remembered_of_a_message_that_has_ended(
    registry: Registry, broker: MemoryBroker, how: dict[str, Any], is_async: bool, batch_size: int
) -> None:
    def handle(given: Message | list[Message]) -> None:
        if isinstance(given, list) or given.id == "2":
            raise ValueError

    consumer = consumer_of(registry, handle, is_async=is_async, max_attempts=1, **how)
    publish(broker, *range(4))
    broker.publish(Message(SUBJECT))
    emptying(registry, broker, batch_size=batch_size, concurrency=2).run()
    assert consumer.binding.calls.began == {}
