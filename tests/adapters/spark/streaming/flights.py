"""Flights from a Kafka topic, each published once: `python -m` this module, `BOOTSTRAP TOPIC URL FOLDER`.

As a program it is to be killed where IDEMPOTENT_CRASH_AT says.
"""

import sys

from idempotent.adapters.spark import StoreConfig, foreach_batch
from idempotent.testing.crashpoints import around
from tests.adapters.spark.streaming.source import TopicSource
from tests.adapters.spark.streaming.streams import publish_to
from tests.adapters.spark.support import sessions
from tests.adapters.spark.support.patience import patiently

SINK = "flights-v1"


def publish_all(spark, bootstrap, topic, store, folder, *, handler=None):
    """Everything that is in the topic now."""
    spark.dataSource.register(TopicSource)
    process = foreach_batch(
        store,
        sink_id=SINK,
        key="value",
        order_by=["part", "at"],
        handler=handler or publish_to(f"{folder}/out"),
        staging=f"{folder}/staging",
        lease_s=5.0,
    )
    frame = spark.readStream.format("topic").option("bootstrap", bootstrap).option("topic", topic).load()
    writer = frame.writeStream.foreachBatch(process).option("checkpointLocation", f"{folder}/checkpoint")

    def run():
        query = writer.start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    patiently(run)


if __name__ == "__main__":
    bootstrap, topic, url, folder = sys.argv[1:]
    publish_all(
        sessions.classic(**sessions.QUICK),
        bootstrap,
        topic,
        StoreConfig(url),
        folder,
        handler=around(publish_to(f"{folder}/out"), "publish"),
    )
