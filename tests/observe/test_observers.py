"""An observer is told what happens to each message, when it happens."""

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.checkers import MemoryChecker
from idempotent.errors import ConfigurationError
from idempotent.observe.observers import Observer


class Recorder(Observer):
    def __init__(self):
        self.events = []

    def claimed(self, consumer, message, request, answer):
        self.events.append(("claimed", message.id))

    def processed(self, consumer, messages, results):
        self.events += [
            ("processed", message.id, result.outcome)
            for message, result in zip(messages, results, strict=True)
        ]


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def consumer(recorder):
    registry = Registry(observers=[recorder])
    return registry.consumer("orders", checker=MemoryChecker())(
        lambda message: recorder.events.append(("ran", message.id))
    )


@pytest.mark.parametrize("way", ["call", "process"])
def test_a_single_message_is_claimed_run_and_processed(recorder, consumer, way):
    (consumer if way == "call" else consumer.process)(Message("orders", id="1"))
    assert recorder.events == [("claimed", "1"), ("ran", "1"), ("processed", "1", Outcome.PROCESSED)]


def test_all_answers_of_a_group_are_known_before_its_first_handler_runs(recorder, consumer):
    consumer.process(Message("orders", id="2"))
    recorder.events.clear()
    consumer.process_many([Message("orders", id=name) for name in "12"])
    assert recorder.events == [
        ("claimed", "1"),
        ("claimed", "2"),
        ("ran", "1"),
        ("processed", "1", Outcome.PROCESSED),
        ("processed", "2", Outcome.DUPLICATE),
    ]


def test_an_observer_that_fails_stops_no_message(consumer, caplog):
    def fail(*_):
        raise ValueError("broken metric")

    class Broken(Observer):
        processed = fail

    consumer.observers.add(Broken())
    assert consumer.process(Message("orders", id="1")).outcome is Outcome.PROCESSED
    assert "observer_failed" in caplog.text


@pytest.mark.parametrize("wrong", [Observer, object(), None])
def test_an_object_that_is_no_observer_is_refused_when_it_is_added(wrong):
    with pytest.raises(ConfigurationError, match="a subclass of Observer"):
        Registry(observers=[wrong])
