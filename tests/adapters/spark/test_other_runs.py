"""Two runs of one consumer at the same time, with keys in common."""

import threading
import time

import pytest

from idempotent.adapters.spark import IdempotentRun
from idempotent.adapters.spark.ledger.claims import ClaimState
from idempotent.errors import ConfigurationError
from tests.adapters.spark.ledger.counting import claims_of
from tests.adapters.spark.support.frames import ROWS


@pytest.fixture
def begin(store):
    """Begin runs of one consumer, closed at the end."""
    begun = []

    def run(run_id, **options):
        begun.append(IdempotentRun.begin(store, consumer="orders", run_id=run_id, **options))
        return begun[-1]

    yield run
    for each in begun:
        each.close()


@pytest.fixture
def first(begin, frame):
    """An open run that owns the first 400 keys."""
    run = begin("first")
    run.claim(run.dedup(frame.where("v < 400"), key="k", unique=True))
    return run


def statuses(run, frame):
    tagged = run.dedup(frame, key="k", unique=True, emit="status", frame="all")
    return {row["_idem"]: row["count"] for row in tagged.groupBy("_idem").count().collect()}


@pytest.mark.slow
def test_fail_refuses_keys_of_an_open_run(begin, first, frame):
    second = begin("second", on_conflict="fail")
    with pytest.raises(Exception, match=r"RunConflictError.*keys are owned by run 'first', which is OPEN"):
        second.dedup(frame, key="k", unique=True).count()
    first.abort()
    assert second.dedup(frame, key="k", unique=True).count() == ROWS


@pytest.mark.slow
def test_divert_puts_keys_of_an_open_run_aside_for_a_later_run(begin, first, frame):
    second = begin("second", on_conflict="divert")
    assert statuses(second, frame) == {"new": 600, "conflict": 400}
    with second.publishing(rows=600):
        assert statuses(second, frame) == {"new": 600, "conflict": 400}
    first.abort()
    assert statuses(begin("third"), frame) == {"new": 400, "duplicate": 600}


def test_divert_without_a_status_is_refused_because_it_would_lose_rows(begin, frame):
    with pytest.raises(ConfigurationError, match='emit="status"'):
        begin("second", on_conflict="divert").dedup(frame, key="k")


@pytest.mark.slow
@pytest.mark.parametrize(("end", "left"), [("commit", 600), ("abort", ROWS)])
def test_wait_waits_until_the_other_run_has_ended(begin, first, frame, end, left):
    second = begin("second", on_conflict="wait")
    counted = []
    waiter = threading.Thread(
        target=lambda: counted.append(second.dedup(frame, key="k", unique=True).count())
    )
    waiter.start()
    # Keys 400 to 499 are in one partition with keys of the first run: a task has claimed them and waits.
    deadline = time.monotonic() + 60
    while claims_of(first.ledger, second.handle.ref)[ClaimState.OWNED] < 100 and time.monotonic() < deadline:
        time.sleep(0.05)
    # A filter that drops or takes the first run's keys would end now, and count another number.
    waiter.join(0.5)
    assert waiter.is_alive()
    if end == "commit":
        with first.publishing():
            pass
    else:
        first.abort()
    waiter.join(90)
    assert counted == [left]


@pytest.mark.slow
def test_wait_gives_up_at_its_end_and_says_who_is_in_the_way(begin, first, frame):
    with (
        first.publishing(),
        pytest.raises(Exception, match=r"RunConflictError.*Begin a PREPARED one again"),
    ):
        begin("second", wait_s=0.5).dedup(frame, key="k", unique=True).count()


@pytest.mark.slow
def test_all_tries_of_a_task_together_wait_for_the_time_that_was_given(begin, first, frame):
    began = time.monotonic()
    with pytest.raises(Exception, match=r"RunConflictError.*waited 10 s"):
        begin("second", wait_s=10.0).dedup(frame, key="k", unique=True).count()
    # Four tries of 10 seconds each would take 40.
    assert 10 <= time.monotonic() - began < 35


@pytest.mark.slow
def test_a_run_that_was_aborted_says_so_on_its_executors(begin, first, frame):
    new = first.dedup(frame, key="k", unique=True)
    first.abort()
    with pytest.raises(
        Exception, match=r"RunFencedError.*is ABORTED: its lease ended, or its driver aborted"
    ):
        new.count()
