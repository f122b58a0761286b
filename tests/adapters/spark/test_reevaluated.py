"""A lazy lineage is evaluated again by every action, and every evaluation gives the same rows."""

import itertools

import pytest
from pyspark.sql import functions as F

from idempotent.adapters.spark import IdempotentRun, idempotent_batches, idempotent_partitions
from tests.adapters.spark.support import naive
from tests.adapters.spark.support.faults import dies, raises, strikes_rows
from tests.adapters.spark.support.frames import ROWS


@pytest.fixture
def run(store):
    with IdempotentRun.begin(store, consumer="orders", run_id="r1") as begun:
        yield begun


@pytest.fixture
def checkpoints(spark, tmp_path):
    spark.sparkContext.setCheckpointDir(str(tmp_path / "checkpoints"))


def frame_actions(new):
    """Programs over a frame with ROWS rows, and what they should say."""
    return {
        "count, count": ([new.count(), new.count()], [ROWS, ROWS]),
        "take, count": ([len(new.take(5)), new.count()], [5, ROWS]),
        "isEmpty, head, count": ([new.isEmpty(), len(new.head(3)), new.count()], [False, 3, ROWS]),
        "schema inferred": ([new.rdd.toDF().count()], [ROWS]),
        "orderBy": ([len(new.orderBy("v").collect())], [ROWS]),
        "repartitionByRange": ([new.repartitionByRange(3, "v").count()], [ROWS]),
        "union with itself": ([new.union(new).count()], [2 * ROWS]),
        "lost cache": ([_cached(new), new.count()], [ROWS, ROWS]),
        "checkpoint": ([new.checkpoint().count(), new.count()], [ROWS, ROWS]),
        "localCheckpoint": ([new.localCheckpoint().count(), new.count()], [ROWS, ROWS]),
    }


def rdd_actions(new):
    """The same for an RDD; `new()` makes it afresh, for what changes it."""
    rdd = new()
    return {
        "count, count": ([rdd.count(), rdd.count()], [ROWS, ROWS]),
        "take, count": ([len(rdd.take(5)), rdd.count()], [5, ROWS]),
        "isEmpty, count": ([rdd.isEmpty(), rdd.count()], [False, ROWS]),
        "schema inferred": ([rdd.toDF().count()], [ROWS]),
        "schema given, orderBy": ([len(rdd.toDF("k string, v long").orderBy("v").collect())], [ROWS]),
        "sortBy": ([rdd.sortBy(lambda row: row["v"]).count()], [ROWS]),
        "zipWithIndex": ([rdd.zipWithIndex().count()], [ROWS]),
        "union with itself": ([rdd.union(rdd).count()], [2 * ROWS]),
        "lost cache": ([_cached(new()), rdd.count()], [ROWS, ROWS]),
        "checkpoint": (_checkpointed(new()), [ROWS, ROWS]),
    }


def _cached(data):
    data.persist()
    count = data.count()
    data.unpersist(blocking=True)
    return count


def _checkpointed(rdd):
    rdd.checkpoint()
    return [rdd.count(), rdd.count()]


@pytest.mark.slow
def test_every_action_on_a_frame_sees_the_same_new_rows(frame, run, checkpoints):
    for name, (seen, expected) in frame_actions(run.dedup(frame, key="k")).items():
        assert seen == expected, name


@pytest.mark.slow
def test_every_action_on_an_rdd_sees_the_same_new_rows(frame, run, checkpoints):
    only_new = idempotent_partitions(run, key="k", chunk=100)
    for name, (seen, expected) in rdd_actions(lambda: frame.rdd.mapPartitions(only_new)).items():
        assert seen == expected, name


@pytest.mark.slow
def test_every_action_on_filtered_batches_sees_the_same_new_rows(frame, sqlite_store):
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r1") as run:
        new = frame.mapInArrow(idempotent_batches(run, key="k"), frame.schema)
        assert [new.isEmpty(), len(new.head(3)), new.limit(10).count()] == [False, 3, 10]
        assert [new.count(), new.count()] == [ROWS, ROWS]


@pytest.mark.slow
def test_a_naive_filter_loses_rows(frame, tmp_path, checkpoints):
    """Why claims belong to a run: every number here should be 1000, but for `take` and the union's 2000.

    The first evaluation inserts the keys, and the next one takes its own keys for duplicates. Spark evaluates again
    for a second action, to infer a schema, to sample for a sort, to number partitions, to write a checkpoint, after
    a lost cache, and when a task is tried again.
    """
    files = (str(tmp_path / f"naive-{number}.db") for number in itertools.count())

    def rdd():
        file = next(files)
        naive.make(file)
        return frame.rdd.mapPartitions(naive.keep_unseen_rows(file))

    def batches():
        file = next(files)
        naive.make(file)
        return frame.mapInArrow(naive.keep_unseen_batches(file), frame.schema)

    new = rdd()
    assert [new.count(), new.count()] == [1000, 0]
    new = rdd()
    assert [len(new.take(5)), new.count()] == [5, 900]
    new = rdd()
    assert [new.isEmpty(), new.count()] == [False, 900]
    assert rdd().toDF().count() == 900
    with pytest.raises(IndexError):
        rdd().sortBy(lambda row: row["v"]).count()
    assert rdd().zipWithIndex().count() == 0
    assert len(rdd().toDF("k string, v long").orderBy("v").collect()) == 0
    new = rdd()
    assert new.union(new).count() == 1000
    new = rdd()
    assert [_cached(new), new.count()] == [1000, 0]
    assert _checkpointed(rdd()) == [1000, 0]
    new = batches()
    assert [new.count(), new.count()] == [1000, 0]
    for strike in (raises, dies):
        assert rdd().mapPartitions(strikes_rows(strike, 150)).count() == 800


@pytest.mark.slow
def test_a_second_write_of_the_same_frame_writes_the_same(spark, frame, run, tmp_path):
    out = str(tmp_path / "out")
    new = run.dedup(frame, key="k")
    written = []
    for _ in range(2):
        new.write.mode("overwrite").parquet(out)
        written.append(sorted(map(tuple, spark.read.parquet(out).collect())))
    assert written[0] == written[1]
    assert len(written[0]) == ROWS


@pytest.mark.slow
def test_keys_of_a_committed_run_are_duplicates_and_only_those(frame, store):
    with IdempotentRun.begin(store, consumer="orders", run_id="r1") as first:
        first.claim(first.dedup(frame.where("v < 600"), key="k"))
        with first.publishing():
            pass
    with IdempotentRun.begin(store, consumer="orders", run_id="r2") as second:
        new = second.dedup(frame, key="k", frame="all")
        assert new.count() == 400
        status = second.dedup(frame, key="k", emit="status", frame="all")
        assert {row["_idem"]: row["count"] for row in status.groupBy("_idem").count().collect()} == {
            "new": 400,
            "duplicate": 600,
        }
        with second.publishing(rows=400):
            assert new.count() == 400
        assert new.count() == 400
    with IdempotentRun.begin(store, consumer="invoices", run_id="r1") as other:
        assert other.dedup(frame, key="k").count() == ROWS


@pytest.mark.slow
def test_a_run_that_was_partitioned_in_another_way_keeps_the_same_rows(spark, store):
    copies = spark.range(1000, numPartitions=4).select((F.col("id") % 100).alias("k"), F.col("id").alias("v"))
    with IdempotentRun.begin(store, consumer="orders", run_id="r1") as run:
        by_value = run.dedup(copies, key="k", order_by=["v"], frame="copies")
        again = run.dedup(copies.repartition(7), key="k", order_by=["v"], frame="copies")
        rows = [sorted((row["k"], row["v"]) for row in each.collect()) for each in (by_value, again)]
        assert rows[0] == rows[1] == [(number, number) for number in range(100)]
        # Rows that are equal in order_by are told apart by all their columns.
        tied = [
            run.dedup(each, key="k", order_by=["k"], frame="copies").agg(F.sum("v")).first()[0]
            for each in (copies, copies.repartition(7), copies.orderBy(F.desc("v")))
        ]
        assert tied == [sum(range(100))] * 3
