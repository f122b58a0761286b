"""Spark runs a task again that failed in the middle, when half of its keys are claimed."""

import pytest

from idempotent.adapters.spark import IdempotentRun, idempotent_foreach, idempotent_partitions
from tests.adapters.spark.support.faults import dies, is_first_attempt, raises, strikes_batches, strikes_rows
from tests.adapters.spark.support.frames import ROWS

STRIKES = pytest.mark.parametrize("strike", [raises, dies])
MIDDLE = 150


@pytest.fixture
def run(store):
    with IdempotentRun.begin(store, consumer="orders", run_id="r1", lease_s=5) as begun:
        yield begun


@STRIKES
def test_a_retried_task_of_an_rdd_emits_every_row(frame, run, strike):
    new = frame.rdd.mapPartitions(idempotent_partitions(run, key="k", chunk=100))
    assert new.mapPartitions(strikes_rows(strike, MIDDLE)).count() == ROWS


@STRIKES
def test_a_retried_task_of_a_frame_emits_every_row(frame, run, strike):
    new = run.dedup(frame, key="k", unique=True)
    assert new.mapInArrow(strikes_batches(strike, MIDDLE), new.schema).distinct().count() == ROWS


def test_a_handler_that_raises_is_called_again_for_its_key_alone(frame, run, effects):
    def handle(row):
        if row["v"] == MIDDLE and is_first_attempt():
            raise ValueError("not yet")
        effects.add(row["k"])

    frame.foreachPartition(idempotent_foreach(run, key="k", handler=handle, chunk=100))
    assert len(effects.times) == ROWS
    assert set(effects.times.values()) == {1}


@pytest.mark.slow
def test_a_worker_that_dies_after_an_effect_repeats_that_one_alone(frame, run, effects):
    def handle(row):
        effects.add(row["k"])
        if row["v"] == MIDDLE and is_first_attempt():
            dies()

    frame.foreachPartition(idempotent_foreach(run, key="k", handler=handle, chunk=100))
    assert len(effects.times) == ROWS
    assert {key for key, times in effects.times.items() if times > 1} == {f"k{MIDDLE}"}
    assert effects.times[f"k{MIDDLE}"] == 2
