"""idempotent_udf: the verdict as a column."""

import pytest
from pyspark.sql import functions as F

from idempotent.adapters.spark import IdempotentRun, StoreConfig, idempotent_udf
from tests.adapters.spark.support.commands import commands_during
from tests.adapters.spark.support.frames import ROWS


@pytest.fixture
def run(store):
    with IdempotentRun.begin(store, consumer="orders", run_id="r1") as begun:
        yield begun


@pytest.fixture
def half_done(store, frame):
    """A run after one that has committed the first 400 keys."""
    with IdempotentRun.begin(store, consumer="orders", run_id="r0") as earlier:
        earlier.claim(earlier.dedup(frame.where("v < 400"), key="k", unique=True))
        with earlier.publishing():
            pass
    with IdempotentRun.begin(store, consumer="orders", run_id="r1") as begun:
        yield begun


@pytest.mark.slow
def test_the_column_says_what_the_filter_lets_through(frame, half_done):
    status = idempotent_udf(half_done)
    tagged = frame.withColumn("status", status("k"))
    for _ in range(2):
        new = tagged.where("status = 'new'").collect()
        assert {row["status"] for row in new} == {"new"}
        assert {row["v"] for row in new} == set(range(400, ROWS))
    counts = {row["status"]: row["count"] for row in tagged.groupBy("status").count().collect()}
    assert counts == {"new": 600, "duplicate": 400}


def test_a_key_of_several_columns_is_the_same_key_as_in_dedup(frame, run):
    parts = frame.select("k", F.col("v").cast("int").alias("n"), F.lit(b"\x00\xff").alias("b"))
    run.claim(run.dedup(parts, key=["k", "n", "b"], unique=True, frame="parts"))
    with run.publishing():
        pass
    status = idempotent_udf(run, frame="parts")
    # The run is over: a key that it did not claim would be an error here.
    assert parts.where(status("k", "n", "b") == "new").count() == ROWS


def test_the_store_is_asked_once_for_each_row(private_redis, frame):
    """Spark evaluates a deterministic function in the filter and again in the projection."""
    server = private_redis()
    store = StoreConfig(server.url)
    with IdempotentRun.begin(store, consumer="orders", run_id="r1", chunk=1) as run:
        status = idempotent_udf(run)
        with commands_during(server.url) as commands:
            rows = frame.withColumn("status", status("k")).where("status = 'new'").collect()
        assert len(rows) == ROWS
        # A chunk is one key here, and each script reads its claims by one MGET.
        assert commands["mget"] == ROWS
        with commands_during(server.url) as commands:
            assert frame.withColumn("status", status("k")).where("v >= 500").drop("status").count() == 500
        assert "mget" not in commands  # Spark does not compute a column that is not read


@pytest.mark.slow
def test_a_limit_claims_more_than_it_shows_and_loses_nothing(frame, run):
    status = idempotent_udf(run)
    assert frame.where(status("k") == "new").limit(10).count() == 10
    assert frame.where(status("k") == "new").count() == ROWS
