"""A driver is killed at every step of a run, and what is published in the end is what a clean one would publish."""

import secrets
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from idempotent.adapters.spark import StoreConfig
from idempotent.adapters.spark.ledger import RunState, open_ledger
from idempotent.adapters.spark.ledger.claims import ClaimState
from idempotent.errors import RunConflictError
from idempotent.migrations import upgrade
from tests.adapters.spark.ledger.counting import claims_of
from tests.adapters.spark.programs import driver
from tests.adapters.spark.programs.killed_driver import CLAIMING, Job
from tests.adapters.spark.support.pipeline import AGAIN, DAY, Place, do

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1100)]
LEASE_S = 3.0
# By consumer: where its run dies, its state then, and the number of published rows in files and table.
DEATHS = {
    "begun": ("after_begin", RunState.OPEN, (0, 0)),
    "claimed": ("after_claim", RunState.OPEN, (0, 0)),
    "prepared": ("after_prepare", RunState.PREPARED, (0, 0)),
    "copied": ("after_publish", RunState.PREPARED, (DAY, 0)),
    "published": ("before_commit", RunState.PREPARED, (DAY, DAY)),
    "committed": ("after_commit", RunState.COMMITTED, (DAY, DAY)),
    "claiming": (CLAIMING, RunState.OPEN, (0, 0)),
    # For the second runs below.
    "dead-open": ("after_claim", RunState.OPEN, (0, 0)),
    "dead-prepared": ("after_publish", RunState.PREPARED, (DAY, 0)),
}


class Left:
    """The state that a killed driver leaves."""

    def __init__(self, store, place):
        self.store = store
        self.place = place

    def row(self, consumer, day=0):
        with open_ledger(self.store) as ledger:
            return ledger.store.newest(consumer, f"{consumer}-{day}")

    def published(self, consumer):
        """The rows if files and table agree; otherwise both."""
        files, table = (
            Counter({row: count for row, count in rows.items() if row[0].rpartition("-")[0] == consumer})
            for rows in (self.place.in_files(), self.place.in_table())
        )
        return files if files == table else (files, table)


@pytest.fixture(scope="module", params=["mysql", "redis"])
def left(request, tmp_path_factory):
    name = f"t{secrets.token_hex(6)}"
    store = StoreConfig(request.getfixturevalue(f"{request.param}_url"), table=name, prefix=f"{name}:")
    if not store.is_redis:
        upgrade(store.url, table=name)
    place = Place(tmp_path_factory.mktemp("pipeline")).prepare()
    deaths = {consumer: at for consumer, (at, _, _) in DEATHS.items()}
    done = driver(*Job.of(store, place, deaths=deaths, lease_s=LEASE_S).command[1:])
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = Left(store, place)
    files, table = (
        Counter(run for run, _ in rows.elements()) for rows in (place.in_files(), place.in_table())
    )
    for consumer, (at, state, seen) in DEATHS.items():
        assert left.row(consumer).state is state, at
        assert (files[f"{consumer}-0"], table[f"{consumer}-0"]) == seen, at
    with open_ledger(store) as ledger:
        assert claims_of(ledger, left.row("claiming").ref)[ClaimState.OWNED] > 0
    return left


def rows(run_id, keys):
    return Counter((run_id, f"k{key}") for key in keys)


# One test of a store: killing a driver at all these places takes longer than looking at what it left, and each process
# of pytest-xdist would do it again.
def test_runs_killed_at_any_step_and_begun_again_publish_what_clean_ones_would(spark, left):
    for consumer in [name for name in DEATHS if "dead" not in name]:
        do(spark, left.store, left.place, day=0, consumer=consumer)
        assert left.published(consumer) == rows(f"{consumer}-0", range(DAY)), consumer
        row = left.row(consumer)
        assert (row.state, row.ref.generation) == (RunState.COMMITTED, 1), consumer
    a_second_run_takes_over_from_a_dead_open_one_and_nothing_is_lost_or_twice(spark, left)
    a_second_run_fails_or_waits_for_a_dead_prepared_one_and_nothing_is_lost_or_twice(spark, left)


def a_second_run_takes_over_from_a_dead_open_one_and_nothing_is_lost_or_twice(spark, left):
    do(spark, left.store, left.place, day=1, consumer="dead-open", on_conflict="wait")
    do(spark, left.store, left.place, day=0, consumer="dead-open")
    taken, rest = rows("dead-open-1", range(DAY - AGAIN, 2 * DAY)), rows("dead-open-0", range(DAY - AGAIN))
    assert left.published("dead-open") == taken + rest
    assert left.row("dead-open").ref.generation == 2


def a_second_run_fails_or_waits_for_a_dead_prepared_one_and_nothing_is_lost_or_twice(spark, left):
    # A PREPARED run cannot be aborted: it may have published, and this one has.
    with pytest.raises(Exception, match=RunConflictError.__name__):
        do(spark, left.store, left.place, day=1, consumer="dead-prepared", on_conflict="fail")
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(do, spark, left.store, left.place, day=1, consumer="dead-prepared")
        do(spark, left.store, left.place, day=0, consumer="dead-prepared")
        second.result()
    first = rows("dead-prepared-0", range(DAY))
    assert left.published("dead-prepared") == first + rows("dead-prepared-1", range(DAY, 2 * DAY))
    assert left.row("dead-prepared").ref.generation == 1
