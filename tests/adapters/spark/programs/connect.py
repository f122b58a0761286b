"""The parts of the package that work on Spark Connect, without a SparkContext."""

import json
import sys
from contextlib import contextmanager

from pyspark import SparkContext
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from idempotent.adapters.spark import (
    IdempotentRun,
    StoreConfig,
    idempotent_batches,
    idempotent_foreach,
    idempotent_udf,
)
from tests.adapters.spark import programs
from tests.adapters.spark.support import sessions
from tests.adapters.spark.support.effects import Effects
from tests.adapters.spark.support.faults import raises, strikes_batches
from tests.adapters.spark.support.frames import numbered

OUT = StructType([StructField("k", StringType()), StructField("text", StringType())])


class Forbidden:
    """Stands in for a SparkContext, and fails when it is used."""

    def __getattr__(self, name):
        raise AssertionError(f"SparkContext.{name} was used on Spark Connect")


def main():
    arguments = json.loads(sys.argv[1])
    store = StoreConfig(arguments["url"], prefix=arguments["prefix"])
    folder = arguments["folder"]
    # A local server never speculates, whatever it is told.
    spark = sessions.connect(**{"spark.speculation": "true"})
    # The server's context is in this process, as that of a remote server would not be.
    SparkContext._active_spark_context = Forbidden()
    frame = numbered(spark)

    @contextmanager
    def run(consumer, run_id="r1", **options):
        with IdempotentRun.begin(store, consumer=consumer, run_id=run_id, **options) as begun:
            yield begun

    def dedup():
        with run("dedup") as begun:
            new = begun.dedup(frame.union(frame), key="k", order_by=["v"])
            counts = [new.count(), len(new.take(5)), new.isEmpty(), new.count()]
            struck = new.mapInArrow(strikes_batches(raises, 150), new.schema).count()
            staged = begun.stage(new, f"{folder}/staging")
            published = []
            begun.publish(lambda publication: published.extend(publication.copy_to(f"{folder}/out")))
            counters = dict(begun.counts)
        with run("dedup", "r2") as begun:
            status = begun.dedup(frame, key="k", emit="status").groupBy("_idem").count().collect()
        nested = frame.select(F.struct(F.col("v").cast("decimal(20, 9)").alias("n")).alias("order"), "k")
        with run("expressions") as begun:
            key = [F.col("order.n") % 300, F.lit(True)]
            by = begun.dedup_by(key=key, order_by=F.desc("order.n"), payload=F.lit(1))
            expressions = [row["k"] for row in nested.transform(by).sort("order.n").collect()]
        return {
            "counts": counts,
            "expressions": expressions,
            "staged": [staged.count(), spark.read.parquet(*published).count()],
            "after a failure": struck,
            "counters": counters,
            "later": {row["_idem"]: row["count"] for row in status},
        }

    def batches():
        with run("batches") as begun:
            new = frame.mapInArrow(idempotent_batches(begun, key="k"), frame.schema)
            return [new.count(), new.isEmpty(), new.count()]

    def replay():
        effects = Effects(f"{folder}/replay")

        def handle(row):
            effects.add(row["k"])
            return {"k": row["k"], "text": "done"}

        with run("replay") as begun:
            replayed = idempotent_batches(begun, key="k", handler=handle, mode="replay", schema=OUT)
            mapped = frame.mapInArrow(replayed, OUT)
            return [mapped.count(), mapped.count(), len(effects.words)]

    def foreach():
        effects = Effects(f"{folder}/foreach")
        with run("foreach") as begun:
            handle = idempotent_foreach(
                begun, key="k", handler=lambda row: effects.add(row["k"]), allow_speculation=True
            )
            for _ in range(2):
                frame.foreachPartition(handle)
        return [len(effects.times), len(effects.words)]

    def foreach_under_speculation():
        with run("refused") as begun:
            idempotent_foreach(begun, key="k", handler=print)

    def column_function():
        with run("udf") as begun:
            status = idempotent_udf(begun)
            tagged = frame.withColumn("status", status("k"))
            return [tagged.where("status = 'new'").count(), tagged.where("status = 'new'").count()]

    def a_failed_key():
        with run("null") as begun:
            begun.dedup(spark.createDataFrame([(None,)], "k string"), key="k").count()

    def an_aborted_run():
        with run("aborted") as begun:
            new = begun.dedup(frame, key="k", unique=True)
            begun.abort()
            new.count()

    programs.report(
        dedup,
        batches,
        replay,
        foreach,
        foreach_under_speculation,
        column_function,
        a_failed_key,
        an_aborted_run,
    )


if __name__ == "__main__":
    main()
