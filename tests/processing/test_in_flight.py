"""What may have killed a process runs while nothing else does."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from idempotent import Message, Outcome, Registry, current_claim
from idempotent.checkers import MemoryChecker
from idempotent.claims import KeyStatus
from idempotent.processing.in_flight import InFlight

SUSPECTS = ("s1", "s2")
IDS = ["a", "s1", "b", "c", "s2", *map(str, range(19))]


class Scene:
    """A consumer with keys that have lapsed, and what its handlers saw."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.checker = MemoryChecker(clock=lambda: time.time() + self.ahead_s)
        self.running: set[str] = set()
        self.beside: dict[str, set[str]] = {}

    def lapsed(self, consumer, *ids: str, beside: bool = True) -> None:
        for name in ids:
            request = consumer.binding.requests.of(Message("orders", id=name), beside=beside)
            self.checker.protocol.abandon(self.checker.protocol.claim(request).claim)
        self.ahead_s += 3600

    def begin(self, message: Message) -> None:
        self.running.add(str(message.id))
        for name in self.running:
            self.beside.setdefault(name, set()).update(self.running)

    def end(self, message: Message) -> None:
        self.running.remove(str(message.id))

    def demand(self) -> None:
        assert set(self.beside) == set(IDS)
        assert {name: self.beside[name] for name in SUSPECTS} == {name: {name} for name in SUSPECTS}


@pytest.mark.parametrize("batch_size", [1, 2])
def test_what_lapsed_runs_alone_in_threads(batch_size):
    scene = Scene()

    @Registry().consumer("orders", checker=scene.checker)
    def consumer(message: Message) -> None:
        scene.begin(message)
        time.sleep(0.05)
        scene.end(message)

    scene.lapsed(consumer, *SUSPECTS)
    messages = [Message("orders", id=name) for name in IDS]
    parts = [messages[start : start + batch_size] for start in range(0, len(IDS), batch_size)]
    with ThreadPoolExecutor(4) as pool:
        results = [result for part in pool.map(consumer.process_many, parts) for result in part]
    assert {result.outcome for result in results} == {Outcome.PROCESSED}
    scene.demand()


def test_nothing_begins_while_a_message_runs_alone():
    scene, begun, gate = Scene(), threading.Event(), threading.Event()

    @Registry().consumer("orders", checker=scene.checker)
    def consumer(message: Message) -> None:
        scene.begin(message)
        if message.id == "s1":
            begun.set()
            assert gate.wait(60)
        scene.end(message)

    scene.lapsed(consumer, "s1")
    with ThreadPoolExecutor(2) as pool:
        suspect = pool.submit(consumer.process, Message("orders", id="s1"))
        assert begun.wait(60)
        other = pool.submit(consumer.process_many, [Message("orders", id="a"), Message("orders", id="b")])
        time.sleep(0.3)
        gate.set()
        assert suspect.result(60).outcome is Outcome.PROCESSED
        assert {result.outcome for result in other.result(60)} == {Outcome.PROCESSED}
    assert scene.beside["s1"] == {"s1"}


def test_of_those_that_run_together_one_at_most_is_charged_for_a_death():
    checker, together, statuses = MemoryChecker(), threading.Barrier(4), []

    @Registry().consumer("orders", checker=checker)
    def consumer(message: Message) -> None:
        together.wait(60)
        statuses.append(checker.admin().get(current_claim().key).status)
        together.wait(60)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(consumer.process, [Message("orders", id=str(number)) for number in range(4)]))
    assert statuses.count(KeyStatus.IN_PROGRESS) <= 1
    assert statuses.count(KeyStatus.IN_PROGRESS_GROUP) >= 3


def test_what_lapsed_runs_alone_in_tasks():
    scene = Scene()

    @Registry().consumer("orders", checker=scene.checker)
    async def consumer(message: Message) -> None:
        scene.begin(message)
        await asyncio.sleep(0.1)
        scene.end(message)

    scene.lapsed(consumer, *SUSPECTS)

    async def main():
        return await asyncio.gather(*(consumer.process(Message("orders", id=name)) for name in IDS))

    assert {result.outcome for result in asyncio.run(main())} == {Outcome.PROCESSED}
    scene.demand()


@pytest.mark.parametrize("inner", ["new", "lapsed"])
@pytest.mark.parametrize("outer", ["new", "lapsed"])
def test_what_a_handler_gives_to_a_consumer_is_part_of_its_run(outer, inner):
    """It waits for it: neither may wait for the other."""
    scene = Scene()
    registry = Registry()

    @registry.consumer("orders", group="inner", checker=scene.checker)
    def inside(message: Message) -> None:
        pass

    begun, others = threading.Event(), threading.Event()

    @registry.consumer("orders", group="outer", checker=scene.checker)
    def outside(message: Message) -> None:
        begun.set()
        if outer == "new":
            assert others.wait(60)
        assert inside.process(Message("orders", id="1")).outcome is Outcome.PROCESSED

    @registry.consumer("orders", group="third", checker=scene.checker)
    def third(message: Message) -> None:
        pass

    scene.lapsed(third, "1")
    scene.lapsed(inside, *["1"] * (inner == "lapsed"))
    scene.lapsed(outside, *["1"] * (outer == "lapsed"))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(outside.process, Message("orders", id="1"))
        assert begun.wait(60)
        # This one has to be alone, and waits for the first.
        second = pool.submit(third.process, Message("orders", id="1"))
        time.sleep(0.1)
        others.set()
        assert {first.result(60).outcome, second.result(60).outcome} == {Outcome.PROCESSED}


@pytest.mark.parametrize(
    ("died_alone", "max_attempts", "shares"),
    [(False, 5, True), (True, 5, True), (True, 2, False)],
)
def test_others_wait_for_one_that_runs_alone_a_minute_unless_its_next_death_is_the_last(
    monkeypatch, died_alone, max_attempts, shares
):
    monkeypatch.setattr("idempotent.processing.in_flight._LONGEST_WAIT_S", 0.3)
    scene, begun, gate = Scene(), threading.Event(), threading.Event()

    @Registry().consumer("orders", checker=scene.checker, max_attempts=max_attempts)
    def consumer(message: Message) -> None:
        if message.id in SUSPECTS:
            begun.set()
            assert gate.wait(60)

    scene.lapsed(consumer, "s1", beside=not died_alone)
    with ThreadPoolExecutor(2) as pool:
        suspect = pool.submit(consumer.process, Message("orders", id="s1"))
        assert begun.wait(60)
        other = pool.submit(consumer.process_many, [Message("orders", id="a"), Message("orders", id="b")])
        if not shares:
            time.sleep(1.0)
            assert not other.done()
            gate.set()
        assert {result.outcome for result in other.result(60)} == {Outcome.PROCESSED}
        gate.set()
        assert suspect.result(60).outcome is Outcome.PROCESSED


@pytest.mark.parametrize("first", ["new", "lapsed"])
def test_a_long_handler_is_waited_for_once(monkeypatch, first):
    monkeypatch.setattr("idempotent.processing.in_flight._LONGEST_WAIT_S", 0.3)
    scene, begun, gate = Scene(), threading.Event(), threading.Event()

    @Registry().consumer("orders", checker=scene.checker)
    def consumer(message: Message) -> None:
        if message.id == "long":
            begun.set()
            assert gate.wait(60)

    scene.lapsed(consumer, *SUSPECTS, *["long"] * (first == "lapsed"))
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(consumer.process, Message("orders", id="long"))
        assert begun.wait(60)
        assert consumer.process(Message("orders", id="s1")).outcome is Outcome.PROCESSED
        monkeypatch.setattr("idempotent.processing.in_flight._LONGEST_WAIT_S", 3600.0)
        assert consumer.process(Message("orders", id="s2")).outcome is Outcome.PROCESSED
        gate.set()
        assert long.result(60).outcome is Outcome.PROCESSED


def test_a_run_that_must_be_alone_waits_no_longer_than_a_minute_for_the_others(monkeypatch):
    monkeypatch.setattr("idempotent.processing.in_flight._LONGEST_WAIT_S", 0.3)
    scene = Scene()
    gate: Callable[[float], bool] = (opened := threading.Event()).wait

    @Registry().consumer("orders", checker=scene.checker)
    def consumer(message: Message) -> None:
        assert message.id != "long" or gate(60)

    scene.lapsed(consumer, "s1")
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(consumer.process, Message("orders", id="long"))
        assert consumer.process(Message("orders", id="s1")).outcome is Outcome.PROCESSED
        opened.set()
        assert long.result(60).outcome is Outcome.PROCESSED


def test_a_handler_that_begins_again_keeps_its_minute(monkeypatch):
    monkeypatch.setattr("idempotent.processing.in_flight._LONGEST_WAIT_S", 0.5)
    alone, suspect = InFlight(), Message("orders", id="s1")
    assert not list(alone.by_itself(b"s1", suspect))
    for _ in range(2):
        alone.share(suspect)
        time.sleep(0.3)
    assert alone.blocked_s(suspect) is None
