"""Drivers of streaming queries in processes of their own: `python -m` this module, `KIND URL FOLDER`.

classic: one query, to be killed where IDEMPOTENT_CRASH_AT says. connect: over Spark Connect, a query that fails, one
that goes on, and one with a reset checkpoint.
"""

import sys
from pathlib import Path

from idempotent.adapters.spark import StoreConfig, foreach_batch
from idempotent.testing.crashpoints import around
from tests.adapters.spark.streaming.streams import CONSUMER, Stream, publish_to
from tests.adapters.spark.support import sessions


def classic(store, stream):
    handler = around(publish_to(stream.out), "publish")
    process = foreach_batch(
        store, sink_id=CONSUMER, key="id", handler=handler, staging=stream.staging, lease_s=5.0
    )
    stream.run(sessions.classic(**sessions.QUICK), process)


def connected():
    """A session on a Spark Connect server of this process's own."""
    from pyspark.sql import SparkSession

    sessions.prepare_environment()
    builder = SparkSession.builder.remote(sessions.MASTER)
    for name, value in {**sessions.SETTINGS, **sessions.QUICK}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def connect(store, stream):
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import functions as F

    spark = connected()

    def process(fails):
        # Spark Connect runs it in another process: by value, with what it closes over, and no globals.
        out, staging, calls = stream.out, stream.staging, str(stream.folder / "handled")

        def handler(new, publication):
            with open(calls, "a") as file:  # noqa: PTH123 - no globals
                file.write(f"{publication.run_id}\n")
            assert new.count() == sum(staged.rows for staged in publication.staged)
            publication.copy_to(f"{out}/run_id={publication.run_id}")
            if fails and publication.run_id.endswith("1"):
                raise RuntimeError("PipelineError")

        def first_id(batch):
            return str(batch.agg({"id": "min"}).collect()[0][0]).encode()

        return foreach_batch(
            store, sink_id=CONSUMER, key=F.abs("id"), handler=handler, staging=staging, fingerprint=first_id
        )

    def says(expected, **options):
        try:
            stream.run(spark, **options)
        except StreamingQueryException as error:
            sys.stdout.write(f"{expected if expected in str(error) else str(error)[-2000:]}\n")

    says("PipelineError", process=process(fails=True))
    stream.run(spark, process(fails=False))
    (stream.folder / "in" / "first.json").unlink()
    says("RunInputChangedError", process=process(fails=False), checkpoint="reset")


if __name__ == "__main__":
    kind, url, folder = sys.argv[1:]
    {"classic": classic, "connect": connect}[kind](StoreConfig(url), Stream(Path(folder)))
