"""bulk_dedup: keys of committed runs in Parquet, and runs that take turns."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from idempotent.adapters.spark import IdempotentRun, bulk_dedup
from idempotent.adapters.spark.ledger import open_ledger
from idempotent.errors import (
    RunConflictError,
    RunFencedError,
    StoreReplacedError,
    UnpublishedClaimsError,
)


@pytest.fixture
def claims(tmp_path):
    return str(tmp_path / "claims")


@pytest.fixture
def begin(sqlite_store):
    def begin(run_id, **options):
        return IdempotentRun.begin(sqlite_store, consumer="orders", run_id=run_id, **options)

    return begin


@pytest.fixture
def frame(spark):
    """Ids, each twice."""

    def frame(start, end):
        ids = spark.range(start, end, numPartitions=2)
        return ids.union(ids).withColumn("copy", F.spark_partition_id())

    return frame


def new_of(run, frame, claims):
    return bulk_dedup(frame, claims=claims, key="id", run=run, order_by=["copy"])


def ids_of(new):
    return Counter(row["id"] for row in new.collect())


def commit(begin, run_id, frame, claims, **options):
    """One run from begin to commit; the ids that it published."""
    with begin(run_id, **options) as run:
        new = new_of(run, frame, claims)
        run.claim(new)
        with run.publishing():
            return ids_of(new)


@pytest.mark.slow
def test_keys_of_committed_runs_are_duplicates_in_every_evaluation(begin, frame, claims):
    assert commit(begin, "r1", frame(0, 100), claims) == Counter(range(100))
    with begin("r2") as second:
        new = new_of(second, frame(50, 150), claims)
        assert [ids_of(new), ids_of(new)] == [Counter(range(100, 150))] * 2
        with second.publishing(rows=50):
            assert ids_of(new) == Counter(range(100, 150))
        assert ids_of(new) == Counter(range(100, 150))
    # Begun again, a committed run sees what it saw, although others came after it.
    assert commit(begin, "r3", frame(0, 200), claims) == Counter(range(150, 200))
    with begin("r2") as again:
        assert ids_of(new_of(again, frame(50, 150), claims)) == Counter(range(100, 150))


@pytest.mark.slow
def test_rows_that_are_not_published_are_counted_with_the_keys_in_parquet(begin, frame, claims):
    with begin("r1") as run:
        assert new_of(run, frame(0, 15), claims).count() == 15
        with pytest.raises(UnpublishedClaimsError, match="claimed 15 keys, and 0 rows would"):
            run.publish(lambda _: None)


@pytest.mark.slow
def test_keys_of_an_aborted_run_do_not_count(begin, frame, claims):
    with begin("r1") as first:
        assert new_of(first, frame(0, 100), claims).count() == 100
        first.abort()
    assert commit(begin, "r2", frame(0, 100), claims) == Counter(range(100))
    # Its next generation has its own folder, and finds nothing new.
    assert commit(begin, "r1", frame(0, 100), claims) == Counter()


@pytest.mark.slow
def test_a_run_that_died_before_its_commit_is_resumed_with_the_same_rows(begin, frame, claims):
    with begin("r1") as dead:
        new_of(dead, frame(0, 100), claims)
    assert commit(begin, "r1", frame(0, 100), claims) == Counter(range(100))
    with begin("r2") as dead:
        new_of(dead, frame(0, 150), claims)
        dead.ledger.prepare(dead.handle.ref)
    with begin("r2") as resumed:
        assert resumed.is_prepared
        new = new_of(resumed, frame(0, 150), claims)
        with resumed.publishing():
            assert ids_of(new) == Counter(range(100, 150))


@pytest.mark.slow
def test_a_folder_with_half_a_run_in_it_is_no_run(begin, frame, claims):
    with begin("r1", lease_s=0.1) as dies:
        own = Path(claims) / f"run={dies.handle.ref.token}" / "_temporary" / "0"
    own.mkdir(parents=True)
    assert commit(begin, "r2", frame(0, 100), claims) == Counter(range(100))
    assert commit(begin, "r3", frame(0, 110), claims) == Counter(range(100, 110))


@pytest.mark.slow
def test_a_second_run_waits_for_its_turn(begin, frame, claims):
    with begin("r1") as first:
        new = new_of(first, frame(0, 100), claims)
        with begin("r2", on_conflict="fail") as impatient, pytest.raises(RunConflictError):
            new_of(impatient, frame(0, 100), claims)
        with begin("r3", wait_s=0.1) as impatient, pytest.raises(RunConflictError):
            new_of(impatient, frame(0, 100), claims)
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(commit, begin, "r4", frame(50, 150), claims)
            with first.publishing(rows=100):
                assert ids_of(new) == Counter(range(100))
            assert second.result() == Counter(range(100, 150))


@pytest.mark.slow
def test_the_turn_of_a_dead_run_is_taken_when_its_lease_ends_and_that_run_is_fenced(begin, frame, claims):
    dead = begin("r1", lease_s=0.3)
    new_of(dead, frame(0, 100), claims)
    dead.close()  # its lease is not renewed any more
    assert commit(begin, "r2", frame(0, 100), claims, on_conflict="wait") == Counter(range(100))
    with begin("r3") as run, pytest.raises(RunFencedError), dead.publishing():
        pytest.fail(f"published beside {run.run_id}")
    dead.close()


@pytest.mark.slow
def test_keys_of_a_run_that_the_ledger_does_not_know_are_an_error(begin, frame, claims, sqlite_store):
    commit(begin, "r1", frame(0, 100), claims)
    with open_ledger(sqlite_store) as ledger:
        token = ledger.store.newest("orders", "r1").ref.token
    (Path(claims) / f"run={token}").rename(Path(claims) / "run=4711")
    with begin("r2") as run, pytest.raises(StoreReplacedError, match="run=4711"):
        new_of(run, frame(0, 100), claims)
