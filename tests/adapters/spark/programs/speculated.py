"""What runs on the cluster: the first attempt of partition 0 is slow, all others are not."""

import time
from dataclasses import dataclass

from pyspark import TaskContext

from tests.adapters.spark.support.effects import Effects
from tests.adapters.spark.support.faults import is_first_attempt

# Spark kills the attempt that lost, long before.
_FOR_EVER_S = 300
# Many of them take longer than a lease, and one takes less than a third of it.
_EFFECT_S = 0.5


def note_attempt(attempts):
    context = TaskContext.get()
    if context.partitionId() == 0:
        attempts.add(context.attemptNumber())


def noted(attempts, handle):
    """For foreachPartition."""

    def run(rows):
        note_attempt(attempts)
        handle(rows)

    return run


def slow_rows(attempts):
    """For mapPartitions: half of what the filter claimed at first goes by, and then nothing."""

    def run(rows):
        note_attempt(attempts)
        for count, row in enumerate(rows):
            if count == 25 and is_first_attempt():
                time.sleep(_FOR_EVER_S)
            yield row

    return run


def slow_batches(attempts):
    """The same for mapInArrow."""

    def run(batches):
        note_attempt(attempts)
        for batch in batches:
            yield batch
            if is_first_attempt():
                time.sleep(_FOR_EVER_S)

    return run


@dataclass(frozen=True)
class SlowHandler:
    """Slow before its effect, in the attempt that Spark finds slow."""

    done: Effects

    def __call__(self, row):
        if is_first_attempt():
            time.sleep(_EFFECT_S)
        self.done.add(row["k"])
