"""A Kafka topic as a source of Structured Streaming, in Python.

Spark's own connector is a jar of the same version as Spark, which is not to be had for every version. What is tested
here is the sink, and it sees the same from both: micro-batches that come again with the same offsets.
"""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows

TIMEOUT_S = 30.0
AT_ONCE = 300


@dataclass
class Slice(InputPartition):
    """Offsets of one partition, the last one excluded."""

    partition: int
    start: int
    end: int


class TopicSource(DataSource):
    """`spark.readStream.format("topic")`, with the options `bootstrap` and `topic`. The values of the messages."""

    @classmethod
    def name(cls):
        return "topic"

    def schema(self):
        return "value string, part int, at bigint"

    def streamReader(self, schema):  # noqa: N802 - Spark's name
        return TopicReader(self.options["bootstrap"], self.options["topic"])


class TopicReader(DataSourceStreamReader):
    def __init__(self, bootstrap, topic):
        self._bootstrap = bootstrap
        self._topic = topic

    def initialOffset(self):  # noqa: N802
        return {str(number): 0 for number in range(self._partitions())}

    def getDefaultReadLimit(self):  # noqa: N802
        return ReadMaxRows(AT_ONCE)

    def latestOffset(self, start, limit):  # noqa: N802
        consumer = self._consumer()
        try:
            ends = {
                number: consumer.get_watermark_offsets(self._at(number), timeout=TIMEOUT_S)[1]
                for number in start
            }
        finally:
            consumer.close()
        share = AT_ONCE // len(start) if isinstance(limit, ReadMaxRows) else None
        return {
            number: end if share is None else min(end, start[number] + share) for number, end in ends.items()
        }

    def partitions(self, start, end):
        return [Slice(int(each), start[each], end[each]) for each in end if end[each] > start[each]]

    def read(self, partition):
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(self._topic, partition.partition, partition.start)])
            at = partition.start
            while at < partition.end:
                message = consumer.poll(TIMEOUT_S)
                if message is None or message.error() is not None:
                    raise TimeoutError(f"{partition}: nothing at {at}")
                if message.offset() < partition.end:
                    yield message.value().decode(), partition.partition, message.offset()
                at = message.offset() + 1
        finally:
            consumer.close()

    def _at(self, number):
        return TopicPartition(self._topic, int(number))

    def _partitions(self):
        consumer = self._consumer()
        try:
            return len(consumer.list_topics(self._topic, timeout=TIMEOUT_S).topics[self._topic].partitions)
        finally:
            consumer.close()

    def _consumer(self):
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "spark",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
