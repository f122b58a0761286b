"""A daily pipeline: each order is in the report once, however often it is delivered or the driver is killed."""

import os
import shutil
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from idempotent.adapters.spark import IdempotentRun, StoreConfig
from idempotent.migrations import upgrade

STORE = StoreConfig("sqlite:///runs.db?timeout=60")
DELIVERED = {
    "2026-11-20": [(1, 100), (2, 250), (2, 250), (3, 70)],
    "2026-11-21": [(4, 120), (3, 70), (1, 100)],
}
# Without it executors start the python3 of their PATH.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
Path("report").mkdir(exist_ok=True)
builder = SparkSession.builder.master("local[2,4]").config("spark.sql.shuffle.partitions", 2)
upgrade(STORE.url)
spark = builder.config("spark.log.level", "ERROR").getOrCreate()

for day, orders in DELIVERED.items():
    with IdempotentRun.begin(STORE, consumer="report", run_id=day) as run:
        if run.is_committed:
            continue
        new = run.dedup(spark.createDataFrame(orders, "id long, cents long"), key="id")
        new.withColumn("euros", new.cents / 100).write.mode("overwrite").parquet(f"staging/{day}")
        with run.publishing():  # from here on no other run can claim these orders
            shutil.rmtree(f"report/day={day}", ignore_errors=True)
            Path(f"staging/{day}").rename(f"report/day={day}")

report = spark.read.parquet("report").orderBy("id")
report.show()
assert [row.id for row in report.collect()] == [1, 2, 3, 4]
spark.stop()
