"""A worker raises the threshold of Python's garbage collector while it runs."""

import gc

import pytest

from idempotent.checkers import MemoryChecker
from idempotent.worker.process import relaxed_python_gc
from tests.worker.running import SUBJECT, emptying, publish


def test_a_batch_on_its_way_starts_no_garbage_collection_and_the_threshold_comes_back(registry, broker):
    before, during = gc.get_threshold(), []

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    def look(_):
        during.append(gc.get_threshold()[0])

    publish(broker, *range(3))
    emptying(registry, broker, batch_size=500).run()
    assert set(during) == {64 * 2 * 500}
    assert gc.get_threshold() == before


@pytest.mark.parametrize("chosen", [(0, 10, 10), (1_000_000, 5, 5)], ids=["none", "higher"])
def test_an_applications_own_threshold_of_the_collector_is_kept(registry, broker, chosen):
    before, during = gc.get_threshold(), []

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    def look(_):
        during.append(gc.get_threshold())

    publish(broker, 1)
    gc.set_threshold(*chosen)
    try:
        emptying(registry, broker, batch_size=500).run()
    finally:
        gc.set_threshold(*before)
    assert during == [chosen]


def test_workers_side_by_side_share_the_highest_threshold():
    before = gc.get_threshold()
    with relaxed_python_gc(1000):
        with relaxed_python_gc(5000):
            assert gc.get_threshold()[0] == 64 * 5000
        assert gc.get_threshold()[0] == 64 * 1000
    assert gc.get_threshold() == before
