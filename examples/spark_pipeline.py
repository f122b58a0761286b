"""A daily pipeline: each order is in the report once, however often it is delivered or the driver is killed."""

import os
import sys

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
builder = SparkSession.builder.master("local[2,4]").config("spark.sql.shuffle.partitions", 2)
upgrade(STORE.url)
spark = builder.config("spark.log.level", "ERROR").getOrCreate()

for day, orders in DELIVERED.items():
    with IdempotentRun.begin(STORE, consumer="report", run_id=day) as run:
        new = run.dedup(spark.createDataFrame(orders, "id long, cents long"), key="id")
        run.stage(new.withColumn("euros", new.cents / 100), "staging")
        # From here on no other run can claim these orders. A committed run is not published again.
        run.publish(lambda publication: publication.copy_to(f"report/day={publication.run_id}"))

report = spark.read.parquet("report").orderBy("id")
report.show()
assert [row.id for row in report.collect()] == [1, 2, 3, 4]
spark.stop()
