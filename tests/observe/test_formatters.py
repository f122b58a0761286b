"""The formatters in a program that sets up `logging` by itself."""

import io
import json
import logging

import pytest

from idempotent import Message, Registry
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.observe.formatters import JsonFormatter, TextFormatter
from tests.support.working import run_until


@pytest.fixture
def logged():
    """`logged(formatter)`: what a worker logs with it when its handler raises."""
    library, stream = logging.getLogger("idempotent"), io.StringIO()
    handler = logging.StreamHandler(stream)
    library.addHandler(handler)

    def run(formatter):
        handler.setFormatter(formatter)
        registry, broker = Registry(), MemoryBroker()

        @registry.consumer("orders", checker=MemoryChecker(), max_attempts=1)
        def pay(message):
            raise ValueError("no account at amqp://me:s3cret@host")

        broker.publish(Message("orders", id="7"))
        run_until(registry, MemoryAdapter(broker), lambda: "message_dead" in stream.getvalue())
        return stream.getvalue()

    yield run
    library.removeHandler(handler)


def test_as_text_an_event_has_its_data_and_its_traceback(logged):
    text = logged(TextFormatter())
    first = text.splitlines()[0]
    assert "WARNING message_dead" in first
    assert "key='orders:default:7'" in first
    assert "ValueError: no account" in first
    assert "Traceback" in text
    assert "s3cret" not in text


def test_as_json_an_event_is_an_object_a_line(logged):
    text = logged(JsonFormatter())
    (line,) = [json.loads(line) for line in text.splitlines() if "message_dead" in line]
    assert (line["level"], line["event"], line["key"]) == ("warning", "message_dead", "orders:default:7")
    assert "s3cret" not in text
