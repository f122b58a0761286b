"""A Kafka topic into a table, each flight once, however often it was sent or the job is killed.

KAFKA_BOOTSTRAP=host:9092 python examples/spark_kafka.py batch     # or: stream
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from idempotent.adapters.spark import IdempotentRun, StoreConfig, foreach_batch
from idempotent.migrations import upgrade

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from idempotent.adapters.spark import Publication

# Of Spark's own version, or the newest before it that Maven Central has.
CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
BOOTSTRAP: Final = os.environ.get("KAFKA_BOOTSTRAP", "")
TOPIC: Final = os.environ.get("KAFKA_TOPIC", "flights")
STORE: Final = StoreConfig("sqlite:///runs.db?timeout=60")
RANGES: Final = Path("ranges.json")
# Records of open transactions are left for a later run, those of aborted ones for none.
KAFKA: Final = {"kafka.bootstrap.servers": BOOTSTRAP, "kafka.isolation.level": "read_committed"}


def batch(spark: SparkSession, publish: Any = None, **options: Any) -> None:
    """Runs over all that is in the topic, until nothing is new."""
    while (ranges := fixed_ranges())["starts"] != ranges["ends"]:
        read = spark.read.format("kafka").options(
            **KAFKA,
            assign=json.dumps({TOPIC: [int(number) for number in ranges["ends"]]}),
            startingOffsets=json.dumps({TOPIC: ranges["starts"]}),
            endingOffsets=json.dumps({TOPIC: ranges["ends"]}),
        )
        run_id = f"{TOPIC}-{'-'.join(map(str, ranges['ends'].values()))}"
        fingerprint = hashlib.sha256(json.dumps(ranges).encode()).digest()
        with IdempotentRun.begin(
            STORE, consumer=f"{TOPIC}-batch", run_id=run_id, fingerprint=fingerprint, **options
        ) as run:
            dedup = run.dedup_by(key="flight", order_by=["partition", "offset"])
            staged = run.stage(flights(read.load()).transform(dedup), "staging")
            run.publish(partial(publish or insert, staged))
        keep({**ranges, "is_done": True})


def stream(spark: SparkSession, publish: Any = None, **options: Any) -> None:
    """The same as a query whose checkpoint keeps the ranges. Without the trigger it never ends."""
    process = foreach_batch(
        STORE,
        sink_id=f"{TOPIC}-stream",
        key="flight",
        order_by=["partition", "offset"],
        handler=publish or insert,
        staging="staging",
        **options,
    )
    read = spark.readStream.format("kafka").options(
        **KAFKA, subscribe=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger=1000
    )
    writer = flights(read.load()).writeStream.foreachBatch(process).trigger(availableNow=True)
    writer.option("checkpointLocation", "checkpoint").start().awaitTermination()


def fixed_ranges() -> dict[str, Any]:
    """Offsets by partition. Until their run has committed the same ones, although the topic has grown."""
    last: dict[str, Any] = (
        json.loads(RANGES.read_text()) if RANGES.exists() else {"ends": {}, "is_done": True}
    )
    if not last["is_done"]:
        return last
    client = Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": "-", "isolation.level": "read_committed"})
    with closing(client):
        found = {
            str(number): client.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=30)
            for number in client.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
        }
    starts = {number: last["ends"].get(number, low) for number, (low, _) in found.items()}
    ends = {number: high for number, (_, high) in found.items()}
    return keep({"starts": starts, "ends": ends, "is_done": starts == ends})


def keep(ranges: dict[str, Any]) -> dict[str, Any]:
    """Write the file as a whole, before a run reads these ranges, and when it has committed."""
    draft = RANGES.with_suffix(".draft")
    draft.write_text(json.dumps(ranges))
    draft.replace(RANGES)
    return ranges


def flights(records: DataFrame) -> DataFrame:
    """The columns of a flight. One without a name would fail the job: its key is null."""
    value = F.from_json(F.col("value").cast("string"), "flight string, distance int, arr_delay int")
    return records.select(value.alias("value"), "partition", "offset").select(
        "value.*", "partition", "offset"
    )


def insert(staged: DataFrame, publication: Publication) -> None:
    """Insert a run's rows, in one transaction. A row that is there stays: this may be repeated, and later."""
    rows = staged.select("flight", "distance", "arr_delay").toLocalIterator()
    with closing(sqlite3.connect("flights.db", timeout=60)) as connection, connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS flights (run_id TEXT, flight TEXT, distance INTEGER, arr_delay INTEGER, "
            "PRIMARY KEY (run_id, flight))"
        )
        connection.executemany(
            "INSERT INTO flights VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            ((publication.run_id, *row) for row in rows),
        )


def session() -> SparkSession:
    """Spark with the connector, which it fetches once."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2,4]").config("spark.jars.packages", CONNECTOR)
    return builder.config("spark.log.level", "ERROR").config("spark.sql.shuffle.partitions", 2).getOrCreate()


if __name__ == "__main__":
    if not BOOTSTRAP:
        print("KAFKA_BOOTSTRAP is not set, so there is nothing to read")
        sys.exit()
    upgrade(STORE.url)
    {"batch": batch, "stream": stream}[sys.argv[1]](session())
