"""The frame that most tests of Spark are about."""

from pyspark.sql import functions as F

ROWS = 1000
PARTITIONS = 4
IN_PARTITION = ROWS // PARTITIONS


def numbered(spark, rows=ROWS, partitions=PARTITIONS):
    """`rows` different keys `k`, in as many partitions, each with its number `v`."""
    return spark.range(rows, numPartitions=partitions).select(
        F.concat(F.lit("k"), F.col("id").cast("string")).alias("k"), F.col("id").alias("v")
    )
