"""Keys: the same hash wherever it is computed, and rows that share one."""

import datetime as dt
import decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import functions as F

from idempotent.adapters.spark import (
    IdempotentRun,
    StoreConfig,
    idempotent_batches,
    idempotent_partitions,
    key_hash,
)
from idempotent.adapters.spark.keys import HASH_COLUMN, with_hash
from idempotent.errors import ConfigurationError, MissingKeyError
from tests.adapters.spark.support.commands import commands_during
from tests.adapters.spark.support.frames import ROWS

PARTS = {
    "string": st.text(max_size=12),
    "binary": st.binary(max_size=12),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "date": st.dates(),
    "boolean": st.booleans(),
    "decimal(12,0)": st.integers(-(10**12) + 1, 10**12 - 1).map(decimal.Decimal),
    "decimal(20,6)": st.integers(-(10**20) + 1, 10**20 - 1).map(lambda units: scaled(units, 6)),
    "decimal(38,18)": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda units: scaled(units, 18)),
    "timestamp": st.datetimes(timezones=st.just(dt.UTC)).filter(lambda at: 1800 < at.year < 2200),
}
WALL_CLOCK = dt.datetime(2026, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)
KINDS = st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=3)


def scaled(units, scale):
    return decimal.Decimal(units).scaleb(-scale, decimal.Context(prec=40))


@st.composite
def tables(draw):
    """Column types and rows of such values."""
    kinds = draw(KINDS)
    return kinds, draw(st.lists(st.tuples(*(PARTS[kind] for kind in kinds)), min_size=1, max_size=30))


@pytest.mark.slow
@given(table=tables(), consumer=st.text(min_size=1, max_size=8))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_jvm_and_python_compute_the_same_hash(spark, table, consumer):
    kinds, rows = table
    names = [f"c{number}" for number in range(len(kinds))]
    schema = ", ".join(f"{name} {kind}" for name, kind in zip(names, kinds, strict=True))
    hashed = with_hash(spark.createDataFrame(rows, schema), consumer, names).select(HASH_COLUMN).collect()
    assert [bytes(row[0]) for row in hashed] == [key_hash(consumer, row) for row in rows]


def test_texts_that_are_no_utf_8_are_different_keys(spark):
    texts = spark.createDataFrame([(bytes([number]),) for number in range(256)], "b binary").select(
        F.col("b").cast("string").alias("k")
    )
    hashed = {bytes(row[0]) for row in with_hash(texts, "orders", ["k"]).select(HASH_COLUMN).collect()}
    assert hashed == {key_hash("orders", [bytes([number])]) for number in range(256)}


@pytest.mark.slow
@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), min_size=2, max_size=2, unique=True))
def test_different_keys_have_different_hashes_however_they_are_cut(pairs):
    one, other = pairs
    assert key_hash("orders", one) != key_hash("orders", other)
    assert key_hash("orders", one) != key_hash("orders", ["".join(one)])
    assert key_hash(one[0], [one[1]]) != key_hash(other[0], [other[1]])


@pytest.mark.slow
def test_texts_that_look_alike_are_different_keys(frame, sqlite_store, spark):
    texts = ["a", "A", "a ", " a", "é", "e\u0301", "", "\0", "😀", "a" * 300, "a" * 301]
    rows = spark.createDataFrame([(text,) for text in texts], "k string")
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r1") as run:
        assert run.dedup(rows.union(rows), key="k").count() == len(texts)


@pytest.mark.parametrize(
    "part", [None, 1.5, decimal.Decimal("NaN"), decimal.Decimal("-Infinity"), WALL_CLOCK, ["a"]]
)
def test_what_has_more_than_one_text_is_no_key(part):
    with pytest.raises(MissingKeyError if part is None else ConfigurationError):
        key_hash("orders", [part])


def test_columns_that_cannot_work_are_refused_on_the_driver(spark, sqlite_store):
    frame = spark.sql("SELECT 1.5D AS price, 'a' AS k")
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r1") as run:
        with pytest.raises(ConfigurationError, match=r"'price' is of type double.*cast it to string"):
            run.dedup(frame, key="price")
        with pytest.raises(ConfigurationError, match=r"no column 'id' for the key; there are price, k"):
            run.dedup(frame, key="id")
        with pytest.raises(ConfigurationError, match="at least one column"):
            run.dedup(frame, key=[])
        with pytest.raises(ConfigurationError, match=r"columns named _IDEM are this package's own"):
            run.dedup(frame.withColumnRenamed("price", "_IDEM"), key="k")


@pytest.mark.slow
def test_a_null_key_fails_the_job_and_says_which_column(spark, sqlite_store, in_this_process):
    rows = spark.createDataFrame([("a", 1), (None, 2)], "k string, v int")
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r1") as run:
        with pytest.raises(Exception, match=r"null key: a row has no value in one of k, v"):
            run.dedup(rows, key=["k", "v"]).count()
        for key in ("k", lambda row: row["k"], lambda row: ("a", row["k"])):
            with pytest.raises(MissingKeyError, match="null key"):
                list(idempotent_partitions(run, key=key)([{"k": None}]))


@pytest.mark.parametrize(
    ("text", "reason"), [("a\ufffd", "U\\+FFFD.*Cast the column to binary"), ("a\ud800", "surrogate")]
)
def test_a_text_that_stands_for_bytes_that_are_none_is_no_key(text, reason):
    """Spark gives Python one text for many such columns' values, which are different keys in the JVM."""
    with pytest.raises(ConfigurationError, match=reason):
        key_hash("orders", [text])


def test_a_key_that_rows_do_not_have_is_named(sqlite_store, in_this_process):
    batch = pa.RecordBatch.from_pylist([{"k": "a", "v": 1}])
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r1") as run:
        with pytest.raises(ConfigurationError, match="no column 'id' for the key in k, v"):
            list(idempotent_batches(run, key=["k", "id"])([batch]))
        # Names alone: values are other people's data, and an error is logged.
        for row, has in (({"k": "a"}, "k"), (Row(k="a"), "k"), (("a",), "a row of type tuple")):
            with pytest.raises(ConfigurationError, match=f"no column 'id' for the key in {has}$"):
                list(idempotent_partitions(run, key="id")([row]))


@pytest.mark.slow
def test_another_payload_under_the_same_key_is_reported(spark, redis_store):
    first = spark.createDataFrame([("a", 1, 9), ("b", 1, 9), ("c", 1, 9)], "k string, v int, seen int")
    later = spark.createDataFrame([("a", 1, 8), ("b", 2, 8), ("d", 1, 8)], "k string, v int, seen int")

    def tagged(run, frame):
        rows = run.dedup(frame, key="k", payload=["v"], order_by=["v"], emit="status", frame="f").collect()
        return sorted((row["k"], row["v"], row["_idem"]) for row in rows)

    with IdempotentRun.begin(redis_store, consumer="orders", run_id="r1") as run:
        # In one run: of b, the first by order_by stays; a second row with the same payload is no conflict.
        assert tagged(run, first.union(later)) == [
            ("a", 1, "new"), ("b", 1, "new"), ("b", 2, "changed"), ("c", 1, "new"), ("d", 1, "new")
        ]  # fmt: skip
        with pytest.raises(Exception, match=r'FingerprintMismatchError: 1 rows.*emit="status" marks them'):
            run.dedup(first.union(later), key="k", payload=["v"], order_by=["v"], frame="f").count()
        with run.publishing(rows=4):
            pass
    with IdempotentRun.begin(redis_store, consumer="orders", run_id="r2") as run:
        # Against a committed run.
        assert tagged(run, later) == [("a", 1, "duplicate"), ("b", 2, "changed"), ("d", 1, "duplicate")]


@pytest.mark.slow
def test_a_hot_key_costs_one_claim_for_each_chunk(private_redis, spark):
    server = private_redis()
    hot = spark.range(10_000, numPartitions=2).select(F.lit("hot").alias("k"), F.col("id").alias("v"))
    with IdempotentRun.begin(StoreConfig(server.url), consumer="orders", run_id="r1", chunk=1000) as run:
        with commands_during(server.url) as commands:
            assert run.dedup(hot, key="k", order_by=["v"], frame="hot").first()["v"] == 0
        assert commands["mget"] == 1
        # Without Spark's own step before: all of them are the run's, in chunks.
        with commands_during(server.url) as commands:
            assert hot.rdd.mapPartitions(idempotent_partitions(run, key="k", frame="hot")).count() == 10_000
        assert commands["mget"] == 10
        assert "set" not in commands


@pytest.mark.slow
def test_counters_tell_what_became_of_the_rows(frame, sqlite_store):
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r1") as run:
        run.claim(run.dedup(frame.where("v < 300"), key="k"))
        assert run.counts == {"new": 300, "duplicate": 0, "conflict": 0}
        with run.publishing():
            pass
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r2") as run:
        run.claim(run.dedup(frame, key="k"))
        assert run.counts == {"new": ROWS - 300, "duplicate": 300, "conflict": 0}
