"""Columns as keys: expressions, nested fields and types, and the hashes that are in ledgers already."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from idempotent.adapters.spark import (
    IdempotentRun,
    bulk_dedup,
    foreach_batch,
    idempotent_batches,
    idempotent_foreach,
    key_hash,
)
from idempotent.adapters.spark.keys import HASH_COLUMN, quoted, with_hash
from idempotent.adapters.spark.tasks.row_keys import RowKeys
from idempotent.errors import ConfigurationError, UnpublishedClaimsError

# Consumer, types and values of a key, and its hash since the first version.
STORED = [
    ("orders", "string", ["a"], "8dece88314ab3c127d23b8cbda6f71d7efe0da8d"),
    ("orders", "string", ["é😀"], "09cd82e1c07e23c5f88bbedcce2ac13a4f30d1f8"),
    ("orders", "string", [""], "91aea290191b62c30b988ba0db175f87a6578363"),
    ("orders", "binary", [b"\x00\xff"], "b58ae20e6f00cf9a2287f1ba75a3d56bc5a3845f"),
    ("orders", "int", [7], "82474d85e1f9ed6a580a5fba5a177b3083ed1d89"),
    ("orders", "bigint", [-(2**63)], "57948f0485721a3db6b5a19f0f67ee0f9a1e5e33"),
    ("orders", "date", [dt.date(2026, 11, 29)], "e64ac1ea2bdc2005d651e60944f9b1b6fa2120c2"),
    (
        "orders",
        "string int date binary",
        ["a", 7, dt.date(1, 1, 1), b"b"],
        "11361a423f06ad3a97b91eff79f724868303e49c",
    ),
    ("zahlung-ü", "string string", ["a", "b"], "009bd52d2fa919571971da6a0c19bac61fbf3e07"),
]
# Columns whose values are one key, and the text of that.
ONE_KEY = [
    ("7", ["'7'", "7Y", "7L", "7BD", "7.00BD", "CAST(7 AS DECIMAL(38, 30))"]),
    ("-12.5", ["'-12.5'", "-12.5BD", "CAST(-12.5 AS DECIMAL(20, 10))"]),
    (
        "1234567.0000001",
        ["CAST(1234567.0000001 AS DECIMAL(30, 7))", "CAST(1234567.0000001 AS DECIMAL(38, 9))"],
    ),
    ("0.0000001", ["CAST('0.0000001' AS DECIMAL(7, 7))", "CAST('0.0000001' AS DECIMAL(38, 20))"]),
    ("0", ["0", "0BD", "CAST(0 AS DECIMAL(38, 38))", "CAST('-0.00' AS DECIMAL(10, 2))"]),
    ("100", ["100", "100BD", "CAST(100 AS DECIMAL(10, 4))"]),
    ("true", ["true", "'true'"]),
    ("1795982400123456", ["TIMESTAMP'2026-11-29 20:00:00.123456Z'", "1795982400123456L"]),
    ("ab", ["'ab'", "CAST('ab' AS VARCHAR(9))"]),
]


@pytest.fixture
def run(sqlite_store):
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r1") as run:
        yield run


@pytest.fixture
def nested(spark):
    """Four rows: two of the order 1, one with capitals; one of the order 2, and one of it in another shop."""
    schema = "order struct<id: string, at: timestamp>, shop string, v int"
    at = dt.datetime(2026, 11, 29, tzinfo=dt.UTC)
    rows = [(("a-1", at), "x", 1), (("A-1", at), "x", 2), (("a-2", at), "x", 3), (("a-2", at), "y", 4)]
    return spark.createDataFrame(rows, schema)


@pytest.fixture(params=[("UTC", "true"), ("America/New_York", "false")])
def session(request, spark):
    """The session with settings that change what a cast to string gives."""
    settings = dict(zip(("spark.sql.session.timeZone", "spark.sql.ansi.enabled"), request.param, strict=True))
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


def hashes(frame, consumer, key):
    return [bytes(row[0]) for row in with_hash(frame, consumer, key).select(HASH_COLUMN).collect()]


def values(frame):
    return sorted(row["v"] for row in frame.collect())


def test_keys_that_were_claimed_before_have_the_same_hash(spark):
    frame = spark.range(1)
    for consumer, types, parts, stored in STORED:
        assert key_hash(consumer, parts).hex() == stored
        literals = [bytearray(part) if isinstance(part, bytes) else str(part) for part in parts]
        key = [F.lit(part).cast(kind) for part, kind in zip(literals, types.split(), strict=True)]
        frame = with_hash(frame, consumer, key).withColumnRenamed(HASH_COLUMN, stored)
    hashed = frame.select(*(stored for _, _, _, stored in STORED)).first().asDict()
    assert {name: bytes(value).hex() for name, value in hashed.items()} == {name: name for name in hashed}


def test_a_value_is_one_key_in_whatever_type_it_comes(session):
    for text, columns in ONE_KEY:
        frame = session.range(1).select(
            *(F.expr(column).alias(f"c{at}") for at, column in enumerate(columns))
        )
        for name in columns:
            frame = with_hash(frame, "orders", F.expr(name)).withColumnRenamed(HASH_COLUMN, name)
        found = {
            name: bytes(value) for name, value in frame.select(*map(quoted, columns)).first().asDict().items()
        }
        assert found == dict.fromkeys(columns, key_hash("orders", [text]))


def test_tasks_compute_the_same_hash_of_these_types(session):
    frame = session.sql(
        "SELECT 1.50BD AS price, CAST('0.0000001' AS DECIMAL(20, 10)) AS rate, true AS paid, "
        "TIMESTAMP'2026-11-01 05:30:00Z' AS at"
    )
    keys = RowKeys("orders", frame.columns)

    def in_tasks(batches):
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"k": pa.array(keys.of_batch(batch), pa.binary())})

    found = [bytes(row[0]) for row in frame.mapInArrow(in_tasks, "k binary").collect()]
    assert found == hashes(frame, "orders", frame.columns)
    parts = [Decimal("1.5"), Decimal("1E-7"), True, dt.datetime(2026, 11, 1, 5, 30, tzinfo=dt.UTC)]
    assert found == [key_hash("orders", parts)]


def test_an_instant_is_one_key_in_every_zone():
    # The hour that clocks show twice.
    zone = ZoneInfo("America/New_York")
    first, second = (dt.datetime(2026, 11, 1, 1, 30, tzinfo=zone, fold=fold) for fold in (0, 1))
    assert key_hash("orders", [first]) == key_hash("orders", [dt.datetime(2026, 11, 1, 5, 30, tzinfo=dt.UTC)])
    assert key_hash("orders", [second]) == key_hash(
        "orders", [dt.datetime(2026, 11, 1, 6, 30, tzinfo=dt.UTC)]
    )


def test_an_expression_is_a_key(run, nested):
    first = run.dedup(nested, key=F.lower("order.id"), order_by=[F.col("order.id"), "v"])
    assert values(first) == [2, 3]


def test_nested_fields_and_names_are_one_key(run, nested):
    both = run.dedup(nested, key=[F.col("order.id"), "shop"])
    assert values(both) == [1, 2, 3, 4]
    assert both.columns == nested.columns


def test_a_frames_own_columns_are_keys_and_payloads(run, nested):
    marked = run.dedup(
        nested, key=nested.order.id, order_by=[nested.v], payload=F.upper("shop"), emit="status"
    )
    found = sorted((row["v"], row["_idem"]) for row in marked.collect())
    assert found == [(1, "new"), (2, "new"), (3, "new"), (4, "changed")]


def test_dedup_by_is_a_function_of_a_frame(run, nested):
    new = nested.transform(run.dedup_by(key=F.col("order.id"), order_by=F.desc("v"))).where("v > 2")
    assert values(new) == [4]


@pytest.mark.slow
def test_bulk_dedup_takes_expressions(run, nested, tmp_path):
    new = bulk_dedup(
        nested,
        claims=str(tmp_path / "claims"),
        key=[F.lower("order.id"), F.col("order.at")],
        run=run,
        order_by="v",
    )
    assert values(new) == [1, 3]


@pytest.mark.slow
def test_foreach_batch_takes_expressions_and_looks_at_payloads(spark, sqlite_store, nested, tmp_path):
    def process(key, **options):
        handled = []
        foreach_batch(
            sqlite_store,
            sink_id=f"s-{key}",
            key=F.col(key),
            handler=lambda new, publication: handled.extend(values(new)),
            staging=str(tmp_path),
            **options,
        )(nested, 0)
        return handled

    assert process("order.id", order_by=F.desc("v")) == [1, 2, 4]
    with pytest.raises(Exception, match="FingerprintMismatchError: 2 rows have the key of an earlier row"):
        process("order.at", payload=F.lower("order.id"), order_by="v")
    assert process("v", unique=True) == [1, 2, 3, 4]
    # Nothing looks for rows of one key before they are claimed; two keys were, for four rows.
    with pytest.raises(UnpublishedClaimsError):
        process("shop", unique=True)


def test_a_char_is_another_key_than_its_text_until_it_is_trimmed(spark, run):
    spark.sql("CREATE TABLE chars (k CHAR(5), s STRING) USING parquet")
    try:
        spark.sql("INSERT INTO chars VALUES ('ab', 'ab')")
        for kept in ("false", "true"):
            spark.conf.set("spark.sql.preserveCharVarcharTypeInfo", kept)
            rows = spark.table("chars")
            assert hashes(rows, "orders", "k") == [key_hash("orders", ["ab   "])]
            assert hashes(rows, "orders", F.rtrim("k")) == hashes(rows, "orders", "s")
    finally:
        spark.conf.unset("spark.sql.preserveCharVarcharTypeInfo")
        spark.sql("DROP TABLE chars")


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("1.5F", "float"),
        ("1.5D", "double"),
        ("TIMESTAMP_NTZ'2026-11-29 20:00:00'", "timestamp_ntz"),
        ("struct(1 AS id)", "struct<id:int>"),
        ("array(1)", "array<int>"),
        ("'a' COLLATE UTF8_LCASE", "string collate UTF8_LCASE"),
    ],
)
def test_a_type_without_one_text_is_refused_by_name(spark, run, column, kind):
    with pytest.raises(ConfigurationError) as refused:
        run.dedup(spark.range(1), key=F.expr(column).alias("price"))
    assert f"column 'price' is of type {kind}, which has more than one text" in str(refused.value)


def test_a_column_is_no_key_in_a_task(spark, run):
    for make in (idempotent_batches, idempotent_foreach):
        with pytest.raises(
            ConfigurationError, match=r"made of names, or a function of a row.*df\.withColumn"
        ):
            make(run, key=F.col("order.id"), **({} if make is idempotent_batches else {"handler": print}))
