"""An observer is told what happens to each message, when it happens."""

import time
from collections import Counter

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.checkers import MemoryChecker
from idempotent.claims import ClaimRequest, Verdict
from idempotent.errors import ConfigurationError
from idempotent.keys import KeySpace
from idempotent.observe import Event, Observer, Observers, counters
from idempotent.observe.counting import CheckerEvents
from tests.support.hooks import answering, unreachable


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


class Counting(Observer):
    def __init__(self):
        self.counts = Counter()

    def counted(self, consumer, what, count):
        self.counts[consumer, what] += count


def test_a_lease_that_ended_is_counted_by_the_registrys_own_observers():
    counting, checker = Counting(), MemoryChecker(lease_s=0.05)
    consumer = Registry(observers=[counting]).consumer("late", checker=checker)(lambda _: time.sleep(0.2))
    with answering(checker, _renew_many=unreachable):
        consumer.process(Message("late", id="1"))
    assert counting.counts == {
        (consumer.name, Event.LEASE_RENEWED_LATE): 1,
        (consumer.name, Outcome.PROCESSED): 1,
    }
    assert (consumer.name, Event.LEASE_RENEWED_LATE) not in counters.snapshot()
    checker.close()


def test_a_lost_completion_is_counted_by_the_registrys_own_observers():
    clock = [1000.0]
    counting, checker = Counting(), MemoryChecker(clock=lambda: clock[0])
    consumer = Registry(observers=[counting]).consumer("lost", checker=checker)(lambda _: None)
    with answering(checker, _complete=unreachable):
        consumer.process(Message("lost", id="1"))
        clock[0] += 3600
        thief = checker._claim(ClaimRequest(KeySpace("lost", "default").key("1")))
        assert thief.verdict is Verdict.ACQUIRED
    checker.close()
    assert counting.counts[consumer.name, Event.COMPLETION_LOST] == 1


def test_a_consumer_that_is_bound_to_no_checker_counts_in_this_process():
    events, name = CheckerEvents(), "unbound:default"
    events.bind("other:default", Observers())
    before = counters.snapshot().get((name, Event.COMPLETION_LOST), 0)
    events.count(name, Event.COMPLETION_LOST)
    assert counters.snapshot()[name, Event.COMPLETION_LOST] == before + 1
