"""How long claims, handlers and completions took, and that nothing is measured unless somebody wants it."""

import asyncio
import time
from functools import partial

import pytest

from idempotent import Message, Registry, once
from idempotent.checkers import MemoryChecker
from idempotent.observe import Counters, Observer
from idempotent.observe import counters as everywhere
from idempotent.observe.events import Stage
from idempotent.observe.timing import BUCKETS_S
from tests.processing.test_interrupted import interrupt_at
from tests.support.hooks import answering, unreachable

STAGES = (Stage.CLAIM, Stage.HANDLER, Stage.COMPLETION)


@pytest.fixture
def counters():
    return Counters()


@pytest.fixture
def registry(counters):
    return Registry(observers=[counters])


def messages(*ids):
    return [Message("orders", id=each) for each in ids]


def counts(counters, name="orders:default"):
    """The claims, handlers and completions that were measured."""
    histograms = counters.durations.snapshot()[name]
    return tuple(sum(histograms[stage][:-1]) for stage in STAGES)


def test_each_message_is_measured_from_when_somebody_wants_it(registry, counters):
    consumer = registry.consumer("orders", checker=MemoryChecker())(lambda message: time.sleep(0.02))
    consumer.process(*messages("before"))
    assert not registry.observers.watch_times
    assert counts(counters) == (0, 0, 0)
    for each in messages("1", "2", "2"):
        consumer.process(each)
    assert counts(counters) == (3, 2, 2)  # a duplicate is claimed, and that is all
    handler = counters.durations.snapshot()[consumer.name][Stage.HANDLER]
    assert handler[-1] > 0.04
    assert sum(handler[: BUCKETS_S.index(0.01) + 1]) == 0


def test_it_is_measured_wherever_the_counters_count_now_and_later(registry, counters):
    registry.consumer("orders", checker=MemoryChecker())(lambda message: None)
    counters.durations  # noqa: B018 - from now on
    later = Registry(observers=[counters])
    later.consumer("orders", group="later", checker=MemoryChecker())(lambda message: None).process(
        *messages("1")
    )
    assert counts(counters, "orders:later") == (1, 1, 1)
    assert counts(counters) == (0, 0, 0)
    assert not Registry(observers=[Counters()]).observers.watch_times


@pytest.mark.parametrize("batch", [False, True])
def test_messages_of_a_group_count_each(registry, counters, batch):
    counters.durations  # noqa: B018
    consumer = registry.consumer("orders", checker=MemoryChecker(), batch=batch)(lambda given: None)
    consumer.process_many(messages("1", "2", "3"))
    assert counts(counters) == (3, 3, 3)
    consumer.process_many(messages("4", "4"))  # one key: the second copy has no claim of its own
    assert counts(counters) == (4, 4, 4)


def test_tasks_are_measured(registry, counters):
    counters.durations  # noqa: B018

    @registry.consumer("orders", checker=MemoryChecker())
    async def handle(message):
        await asyncio.sleep(0.01)

    async def both():
        await handle.process(*messages("1"))
        await handle.process_many(messages("2", "3"))

    asyncio.run(both())
    assert counts(counters) == (3, 3, 3)


def test_a_handler_that_raises_counts_and_what_the_store_did_not_answer_does_not(registry, counters):
    counters.durations  # noqa: B018
    checker = MemoryChecker()

    @registry.consumer("orders", checker=checker)
    def fails(message):
        raise ValueError

    fails.process(*messages("1"))
    assert counts(counters) == (1, 1, 0)
    with answering(checker, _claim=unreachable):
        fails.process(*messages("2"))
    assert counts(counters) == (1, 1, 0)


def test_an_observer_that_raises_costs_no_message(registry, counters):
    class Broken(Observer):
        def timed(self, consumer, times):
            raise RuntimeError

    registry.observers.add(Broken())
    consumer = registry.consumer("orders", checker=MemoryChecker())(lambda message: message.id)
    assert consumer.process(*messages("1")).value == "1"


def test_a_block_is_measured():
    everywhere.durations  # noqa: B018
    with once(MemoryChecker(), "1", group="timed"):
        time.sleep(0.01)
    assert counts(everywhere, "once:timed") == (1, 1, 1)


def test_an_interrupt_between_measured_steps_leaves_no_claim(registry, counters):
    counters.durations  # noqa: B018
    checker = MemoryChecker()
    consumer = registry.consumer("orders", checker=checker)(lambda message: None)
    nth = 0
    while interrupt_at(nth, partial(consumer.process, *messages(f"{nth}")), KeyboardInterrupt):
        assert len(checker.protocol._keeper._held) == checker.protocol.unrecorded, nth
        nth += 1
    assert nth > 30
