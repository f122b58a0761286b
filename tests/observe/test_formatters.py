"""The formatters in a program that sets up `logging` by itself."""

import io
import json
import logging
import threading
import time

import pytest
from rich.console import Console
from rich.file_proxy import FileProxy

from idempotent import Message, Registry
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.observe.formatters import JsonFormatter, TextFormatter
from tests.support.working import run_until


@pytest.fixture
def logged():
    """`logged(formatter)`: what a worker logs with it when its handler raises; `terminal`: above a line of progress."""
    library, stream = logging.getLogger("idempotent"), io.StringIO()
    handlers = []

    def run(formatter, text="no account at amqp://me:s3cret@host", *, terminal=False):
        above = FileProxy(Console(file=stream, force_terminal=True), stream)
        handlers.append(logging.StreamHandler(above if terminal else stream))
        library.addHandler(handlers[0])
        handlers[0].setFormatter(formatter)
        registry, broker = Registry(), MemoryBroker()

        @registry.consumer("orders", checker=MemoryChecker(), max_attempts=1)
        def pay(message):
            raise ValueError(text)

        broker.publish(Message("orders", id="7"))
        run_until(registry, MemoryAdapter(broker), lambda: "message_dead" in stream.getvalue())
        return stream.getvalue()

    yield run
    for handler in handlers:
        library.removeHandler(handler)


def test_as_text_an_event_has_its_data_and_its_traceback(logged):
    text = logged(TextFormatter())
    first = text.splitlines()[0]
    assert "ERROR message_dead" in first
    assert "key='orders:default:7'" in first
    assert "ValueError: no account" in first
    assert "Traceback" in text
    assert "s3cret" not in text


def test_as_json_an_event_is_an_object_a_line(logged):
    text = logged(JsonFormatter())
    (line,) = [json.loads(line) for line in text.splitlines() if "message_dead" in line]
    assert (line["level"], line["event"], line["key"]) == ("error", "message_dead", "orders:default:7")
    assert "s3cret" not in text


@pytest.mark.parametrize("text", ['x://h?password="s3cret"', "x://me:\"s3cret'@h"])
def test_a_line_of_json_stays_one_whatever_the_password_has(text):
    record = logging.LogRecord("x", 30, "x", 1, text, None, None)
    record.given = {"urls": [text], "kind": ValueError(text)}
    line = JsonFormatter().format(record)
    assert json.loads(line)["given"]["urls"] == [json.loads(line)["event"]]
    assert "x://me:***@h" in line or "x://h?password=***" in line


@pytest.mark.parametrize("part", ["://a:", "\n"])
@pytest.mark.parametrize("form", ["text", "json", "terminal"])
def test_an_error_with_the_body_of_a_message_stops_no_other_thread(logged, form, part):
    """The thread that renews leases is one of them."""
    longest, ended = 0.0, threading.Event()

    def tick():
        nonlocal longest
        last = time.process_time()  # other processes of a busy machine are not counted
        while not ended.wait(0.001):
            now = time.process_time()
            longest, last = max(longest, now - last), now

    ticking = threading.Thread(target=tick)
    ticking.start()
    formatter = JsonFormatter() if form == "json" else TextFormatter()
    try:
        logged(formatter, part * 40_000 + "@", terminal=form == "terminal")
    finally:
        ended.set()
        ticking.join()
    assert longest < 2.0
