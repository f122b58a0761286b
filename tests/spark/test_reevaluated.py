"""A lazy lineage is evaluated again by every action, and every evaluation gives the same rows."""

import sqlite3

import pytest
from pyspark.sql import functions as F

from idempotent.adapters.spark import IdempotentRun, idempotent_partitions

ROWS = 1000
SCHEMA = "k string, v bigint"


@pytest.fixture
def frame(spark):
    return spark.range(ROWS, numPartitions=4).select(
        F.concat(F.lit("k"), F.col("id").cast("string")).alias("k"), F.col("id").alias("v")
    )


@pytest.fixture
def run(store):
    with IdempotentRun.begin(store, consumer="orders", run_id="r1") as begun:
        yield begun


def actions(frame, folder):
    """Pairs of actions, and what they should say of a frame with ROWS rows."""
    rdd = frame.rdd
    return {
        "count, count": ([frame.count(), frame.count()], [ROWS, ROWS]),
        "take, count": ([len(frame.take(5)), frame.count()], [5, ROWS]),
        "isEmpty, count": ([frame.isEmpty(), frame.count()], [False, ROWS]),
        "schema inferred": ([rdd.toDF().count()], [ROWS]),
        "orderBy": ([len(frame.orderBy("v").collect())], [ROWS]),
        "repartitionByRange": ([frame.repartitionByRange(3, "v").count()], [ROWS]),
        "union with itself": ([frame.union(frame).count()], [2 * ROWS]),
        "sortBy": ([rdd.sortBy(lambda row: row["v"]).count()], [ROWS]),
        "zipWithIndex": ([rdd.zipWithIndex().count()], [ROWS]),
        "lost cache": ([_cached(frame), frame.count()], [ROWS, ROWS]),
    }


def _cached(frame):
    frame.persist()
    count = frame.count()
    frame.unpersist(blocking=True)
    return count


def test_every_action_sees_the_same_new_rows(frame, run, tmp_path):
    for name, (seen, expected) in actions(run.dedup(frame, key="k"), tmp_path).items():
        assert seen == expected, name


def test_every_action_on_an_rdd_sees_the_same_new_rows(frame, run, tmp_path):
    rdd = frame.rdd.mapPartitions(idempotent_partitions(run, key="k", chunk=100))
    assert [rdd.count(), rdd.count(), len(rdd.take(5)), rdd.count()] == [ROWS, ROWS, 5, ROWS]
    assert rdd.sortBy(lambda row: row["v"]).count() == ROWS
    assert rdd.toDF().count() == ROWS


def test_a_naive_filter_loses_rows(spark, frame, tmp_path):
    """Why there are runs: the numbers of spark.md section 2, for a filter that keeps what it inserted."""
    file = str(tmp_path / "naive.db")
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE seen (k TEXT PRIMARY KEY)")
    connection.close()

    def keep_what_was_inserted(rows):
        connection = sqlite3.connect(file, timeout=60, isolation_level=None)
        for row in rows:
            if connection.execute("INSERT OR IGNORE INTO seen VALUES (?)", (row["k"],)).rowcount:
                yield row
        connection.close()

    naive = frame.rdd.mapPartitions(keep_what_was_inserted)
    assert [naive.count(), naive.count()] == [ROWS, 0]


def test_a_second_write_of_the_same_frame_writes_the_same(spark, frame, run, tmp_path):
    out = str(tmp_path / "out")
    new = run.dedup(frame, key="k")
    for _ in range(2):
        new.write.mode("overwrite").parquet(out)
        assert spark.read.parquet(out).count() == ROWS


def test_keys_of_a_committed_run_are_duplicates_and_only_those(spark, frame, store):
    with IdempotentRun.begin(store, consumer="orders", run_id="r1") as first:
        first.claim(first.dedup(frame.where("v < 600"), key="k"))
        with first.publishing():
            pass
    with IdempotentRun.begin(store, consumer="orders", run_id="r2") as second:
        new = second.dedup(frame, key="k")
        assert new.count() == 400
        status = second.dedup(frame, key="k", emit="status")
        assert {row["_idem"]: row["count"] for row in status.groupBy("_idem").count().collect()} == {
            "new": 400,
            "duplicate": 600,
        }
        with second.publishing():
            assert new.count() == 400
        assert new.count() == 400
    with IdempotentRun.begin(store, consumer="invoices", run_id="r1") as other:
        assert other.dedup(frame, key="k").count() == ROWS


def test_a_run_that_was_partitioned_in_another_way_keeps_the_same_keys(spark, store):
    copies = spark.range(1000, numPartitions=4).select((F.col("id") % 100).alias("k"), F.col("id").alias("v"))
    with IdempotentRun.begin(store, consumer="orders", run_id="r1") as run:
        first = run.dedup(copies, key="k", order_by=["v"])
        again = run.dedup(copies.repartition(7), key="k", order_by=["v"])
        rows = [sorted((row["k"], row["v"]) for row in each.collect()) for each in (first, again, first)]
    assert rows[0] == rows[1] == rows[2] == [(number, number) for number in range(100)]
