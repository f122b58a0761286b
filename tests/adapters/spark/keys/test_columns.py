"""Columns with any characters in their names, and a text for one of them, in everything that takes a frame."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from idempotent.adapters.spark import IdempotentRun, bulk_dedup

ODD = ["shop.id", "shop", "a`b", "c d", "é.ü"]
SCHEMA = ", ".join(f"`{name.replace('`', '``')}` int" for name in ODD)


@pytest.fixture
def run(sqlite_store):
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r1") as run:
        yield run


@pytest.fixture
def odd(spark):
    """Ten rows of five keys; the first column is the key, the second tells the rows of a key apart."""
    return spark.createDataFrame([(at % 5, at, 1, 2, 3) for at in range(10)], SCHEMA)


@pytest.mark.parametrize("emit", ["rows", "status"])
def test_columns_have_any_characters_in_their_names(run, odd, emit, tmp_path):
    options = {"key": "shop.id", "order_by": ["shop"], "payload": ["a`b", "é.ü"], "emit": emit}
    new = run.dedup(odd, **options)
    staged = run.stage(new, str(tmp_path / "staging"))
    assert sorted(tuple(row)[:2] for row in staged.collect()) == [(at, at) for at in range(5)]
    assert staged.columns == (ODD if emit == "rows" else [*ODD, "_idem"])


@pytest.mark.slow
def test_bulk_dedup_takes_such_columns_too(run, odd, tmp_path):
    new = bulk_dedup(odd, claims=str(tmp_path / "claims"), key="shop.id", run=run, order_by=["shop"])
    assert sorted(tuple(row)[:2] for row in new.collect()) == [(at, at) for at in range(5)]
    assert new.columns == ODD


def test_a_text_is_the_name_of_one_column(spark, run):
    schema = "k string, ab int, a int, b int"
    alike_in_a_and_b = spark.createDataFrame([("k", 1, 0, 0), ("k", 2, 0, 0)], schema)
    marked = run.dedup(alike_in_a_and_b, key="k", payload="ab", order_by=["ab"], emit="status").collect()
    assert sorted((row["ab"], row["_idem"]) for row in marked) == [(1, "new"), (2, "changed")]
    otherwise_in_a = spark.createDataFrame([("l", 1, 2, 0), ("l", 2, 1, 0)], schema)
    assert run.dedup(otherwise_in_a, key="k", order_by="ab").first()["ab"] == 1


def test_a_column_may_be_the_whole_order(spark, run):
    rows = spark.createDataFrame([("k", 1), ("k", 2)], "k string, v int")
    assert run.dedup(rows, key="k", order_by=F.col("v").desc()).first()["v"] == 2
