"""An observer is told what happens to each message, when it happens."""

import asyncio
import time
from collections import Counter

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.adapters import MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.claims import ClaimRequest, Verdict
from idempotent.errors import ConfigurationError
from idempotent.keys import KeySpace
from idempotent.observe import Event, Observer, Observers, counters
from idempotent.observe.counting import CheckerEvents
from tests.support.hooks import answering, unreachable
from tests.worker.running import consumer_of, emptying, publish


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


def ending(hook):
    return lambda self, *_: self.end(hook)


class Ending(Observer):
    """Whatever it is asked, it raises what would end a worker."""

    def __init__(self, kind):
        self.kind = kind
        self.asked = set()

    def end(self, hook):
        self.asked.add(hook)
        raise self.kind

    def around(self, *_):
        return self

    def __enter__(self):
        pass

    __exit__ = ending("around")
    declared, counted, claimed = ending("declared"), ending("counted"), ending("claimed")
    ran, timed, processed = ending("ran"), ending("timed"), ending("processed")
    settling, settled = ending("settling"), ending("settled")
    wants_times = property(ending("wants_times"))


ENDS = [SystemExit, asyncio.CancelledError, GeneratorExit]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", ENDS)
def test_nothing_that_an_observer_raises_ends_the_worker(caplog, kind, is_async):
    observer, broker, ran = Ending(kind), MemoryBroker(), []
    registry = Registry(observers=[observer])
    consumer_of(registry, lambda message: ran.append(message.id), is_async=is_async)
    publish(broker, "1", "2")
    summary = emptying(registry, broker).run()
    assert summary[Outcome.PROCESSED] == len(ran) == 2
    assert observer.asked == {
        *("declared", "counted", "claimed", "ran", "processed", "settling", "settled"),
        *("around", "wants_times"),
    }
    assert {kind} == {record.exc_info[0] for record in caplog.records if record.event == "observer_failed"}


@pytest.mark.parametrize("kind", ENDS)
def test_a_cancellation_of_the_handlers_task_passes_an_observer_that_fails(kind):
    registry = Registry(observers=[Ending(kind)])
    ends = []

    @registry.consumer("orders", checker=MemoryChecker())
    async def handle(message):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ends.append(message.id)
            raise

    async def cancelled():
        task = asyncio.create_task(handle(Message("orders", id="1")))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert ends == ["1"]


def test_ctrl_c_passes_an_observer():
    consumer = Registry(observers=[Counting()]).consumer("orders", checker=MemoryChecker())(lambda _: None)

    class Interrupted(Observer):
        def processed(self, *_):
            raise KeyboardInterrupt

    consumer.observers.add(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        consumer.process(Message("orders", id="1"))


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
