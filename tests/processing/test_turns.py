"""What may have killed processes runs one at a time; everything else runs beside it."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from idempotent import Message, Outcome, Registry, current_claim
from idempotent.checkers import MemoryChecker
from idempotent.processing.turns import turns
from tests.processing.test_interrupted import SignalError, interrupt_at
from tests.support.logs import logged

SUSPECTS = ("s1", "s2", "s3")
IDS = ["a", "s1", "b", "c", "s2", *map(str, range(10)), "s3"]


class Scene:
    """A consumer with keys that have lapsed, and what its handlers saw."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.checker = MemoryChecker(clock=lambda: time.time() + self.ahead_s)
        self.running: set[str] = set()
        self.beside: dict[str, set[str]] = {}
        self.deaths: dict[str, int] = {}

    def died(self, consumer, *ids: str, times: int = 2) -> None:
        requests = consumer.binding.requests
        for _ in range(times):
            for name in ids:
                request = requests.after_a_death(requests.of(Message("orders", id=name)))
                self.checker.protocol.abandon(self.checker.protocol.claim(request).claim)
            self.ahead_s += 3600

    def begin(self, message: Message) -> None:
        self.running.add(str(message.id))
        self.deaths[str(message.id)] = current_claim().deaths
        for name in self.running:
            self.beside.setdefault(name, set()).update(self.running)

    def end(self, message: Message) -> None:
        self.running.remove(str(message.id))

    def demand(self) -> None:
        assert set(self.beside) == set(IDS)
        assert {name: self.beside[name] & {*SUSPECTS} for name in SUSPECTS} == {n: {n} for n in SUSPECTS}
        assert any(self.beside[name] - {name} for name in SUSPECTS), "others run beside them"
        assert self.deaths == {name: 2 if name in SUSPECTS else 0 for name in IDS}


@pytest.mark.parametrize("batch_size", [1, 2])
def test_suspects_take_turns_in_threads(batch_size):
    scene = Scene()

    @Registry().consumer("orders", checker=scene.checker)
    def consumer(message: Message) -> None:
        scene.begin(message)
        time.sleep(0.05)
        scene.end(message)

    def until_processed(messages):
        results = consumer.process_many(messages)
        while Outcome.IN_PROGRESS in {result.outcome for result in results}:
            time.sleep(0.01)
            results = consumer.process_many(messages)
        return {result.outcome for result in results}

    scene.died(consumer, *SUSPECTS)
    messages = [Message("orders", id=name) for name in IDS]
    parts = [messages[start : start + batch_size] for start in range(0, len(IDS), batch_size)]
    with ThreadPoolExecutor(4) as pool:
        for outcomes in pool.map(until_processed, parts):
            assert outcomes <= {Outcome.PROCESSED, Outcome.DUPLICATE}
    scene.demand()


def test_suspects_take_turns_in_tasks():
    scene = Scene()

    @Registry().consumer("orders", checker=scene.checker)
    async def consumer(message: Message) -> None:
        scene.begin(message)
        await asyncio.sleep(0.1)
        scene.end(message)

    async def until_processed(name):
        for _ in range(1000):
            result = await consumer.process(Message("orders", id=name))
            if result.outcome is not Outcome.IN_PROGRESS:
                return result.outcome
            await asyncio.sleep(0.01)
        return None

    async def main():
        return await asyncio.gather(*map(until_processed, IDS))

    scene.died(consumer, *SUSPECTS)
    assert {*asyncio.run(main())} == {Outcome.PROCESSED}
    scene.demand()


@pytest.mark.parametrize("times", [1, 2])
def test_who_waits_for_a_turn_holds_no_place_and_one_death_waits_for_none(times):
    scene, begun, gate = Scene(), threading.Event(), threading.Event()

    @Registry().consumer("orders", checker=scene.checker)
    def consumer(message: Message) -> None:
        if message.id == "s1":
            begun.set()
            assert gate.wait(60)

    scene.died(consumer, "s1")
    scene.died(consumer, "s2", times=times)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(consumer.process, Message("orders", id="s1"))
        assert begun.wait(60)
        second = consumer.process(Message("orders", id="s2"))
        others = consumer.process_many([Message("orders", id="a"), Message("orders", id="b")])
        gate.set()
        assert first.result(60).outcome is Outcome.PROCESSED
    assert second.outcome is (Outcome.PROCESSED if times == 1 else Outcome.IN_PROGRESS)
    assert times == 1 or "waits for its turn" in second.reason
    assert {result.outcome for result in others} == {Outcome.PROCESSED}
    assert consumer.process(Message("orders", id="s2")).outcome in (Outcome.PROCESSED, Outcome.DUPLICATE)


@pytest.mark.parametrize("inner", [0, 2])
@pytest.mark.parametrize("outer", [0, 2])
def test_what_a_handler_gives_to_a_consumer_is_part_of_its_run(outer, inner):
    """It waits for it: neither may wait for the other."""
    scene = Scene()
    registry = Registry()

    @registry.consumer("orders", group="inner", checker=scene.checker)
    def inside(message: Message) -> None:
        pass

    @registry.consumer("orders", group="outer", checker=scene.checker)
    def outside(message: Message) -> None:
        assert inside.process(Message("orders", id="1")).outcome is Outcome.PROCESSED

    scene.died(inside, "1", times=inner)
    scene.died(outside, "1", times=outer)
    assert outside.process(Message("orders", id="1")).outcome is Outcome.PROCESSED


def test_a_turn_that_lasts_long_is_named_once(monkeypatch, caplog):
    monkeypatch.setattr("idempotent.processing.turns._LONG_S", 0.0)
    scene = Scene()

    @Registry().consumer("orders", checker=scene.checker)
    def consumer(message: Message) -> None:
        if message.id == "s1":
            with ThreadPoolExecutor(1) as pool:  # not what this handler gives to the consumer
                for name in ("s2", "s3", "s2"):
                    waits = pool.submit(consumer.process, Message("orders", id=name)).result(60)
                    assert waits.outcome is Outcome.IN_PROGRESS

    scene.died(consumer, *SUSPECTS)
    assert consumer.process(Message("orders", id="s1")).outcome is Outcome.PROCESSED
    (line,) = logged(caplog, "turn_is_long")
    assert (line.consumer, line.message_id) == ("orders:default", "s1")
    assert consumer.process(Message("orders", id="s2")).outcome is Outcome.PROCESSED


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SignalError])
def test_a_turn_ends_wherever_an_exception_comes(kind):
    scene, nth = Scene(), 0
    consumer = Registry().consumer("orders", checker=scene.checker)(lambda _: None)
    while True:
        scene.died(consumer, f"m{nth}")
        if not interrupt_at(nth, partial(consumer.process, Message("orders", id=f"m{nth}")), kind):
            break
        assert turns.taken is None, nth
        nth += 1
    assert nth > 50


@pytest.mark.parametrize("together", [False, True])
def test_deaths_in_a_row_make_a_message_dead(shared_store, together, caplog):
    """Of any checker with leases; `guarantees/deaths` kills processes."""
    consumer = Registry().consumer("orders", checker=shared_store.leased(), max_deaths=3)(lambda _: None)
    deadly, other = Message("orders", id="deadly"), Message("orders", id="other")
    requests, protocol = consumer.binding.requests, consumer.binding.protocol
    for _ in range(3):
        protocol.abandon(protocol.claim(requests.after_a_death(requests.of(deadly))).claim)
        shared_store.age(3600)
    results = consumer.process_many([other, deadly]) if together else [consumer.process(deadly)]
    assert results[-1].outcome is Outcome.DEAD
    assert "its process died 3 times while it ran" in str(results[-1].error)
    (line,) = logged(caplog, "process_died")
    assert (line.levelname, line.message_id, line.deaths, line.max_deaths) == ("WARNING", "deadly", 3, 3)
    record = consumer.checker.admin().get(consumer.key_of("deadly"))
    assert record.last_error == "its process died 3 times while it ran"
    assert consumer.process(deadly).outcome is Outcome.DEAD
    assert consumer.checker.admin().reopen(record)
    assert consumer.process(deadly).outcome is Outcome.PROCESSED
