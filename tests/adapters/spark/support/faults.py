"""Faults that strike the first attempt of one partition, and never again."""

import os

from pyspark import TaskContext


class FirstAttemptFailed(Exception):
    pass


def is_first_attempt():
    context = TaskContext.get()
    return context.partitionId() == 0 and context.attemptNumber() == 0


def raises():
    raise FirstAttemptFailed


def dies():
    os._exit(1)


def strikes_rows(strike, after):
    """For mapPartitions: passes rows on, and strikes after a number of them."""

    def run(rows):
        for count, row in enumerate(rows):
            if count == after and is_first_attempt():
                strike()
            yield row

    return run


def strikes_batches(strike, after):
    """The same for mapInArrow."""

    def run(batches):
        seen = 0
        for batch in batches:
            seen += batch.num_rows
            if seen > after and is_first_attempt():
                strike()
            yield batch

    return run
