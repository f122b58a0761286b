"""A Kafka topic through Structured Streaming, with a driver that is killed."""

import random
import secrets
import signal
from collections import Counter
from pathlib import Path

import pytest

from idempotent.testing.crashpoints import CRASH_VARIABLE
from tests.adapters.kafka.broker import Broker
from tests.adapters.spark.programs import driver
from tests.adapters.spark.streaming.flights import publish_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1100)]
PARTITIONS = 3


def values_in(out):
    from pyarrow import parquet

    return Counter(
        value
        for file in Path(out).glob("run_id=*/*.parquet")
        for value in parquet.read_table(file)["value"].to_pylist()
    )


def test_each_flight_of_a_topic_is_published_once_although_the_driver_is_killed(
    spark, kafka_bootstrap, sqlite_store, tmp_path
):
    broker, topic = Broker(kafka_bootstrap), f"flights-{secrets.token_hex(4)}"
    broker.make(topic, PARTITIONS)
    flights = [f"UA{number}" for number in range(1200)]
    rng = random.Random(7)
    # A producer's second try may go to another partition.
    sent = [*flights, *rng.sample(flights, 300)]
    rng.shuffle(sent)
    try:
        for flight in sent:
            broker.send(topic, flight.encode(), partition=rng.randrange(PARTITIONS))
        broker.flush()
        place = [kafka_bootstrap, topic, sqlite_store.url, str(tmp_path)]
        # Published, and neither Spark nor the ledger knows it.
        program = ["-m", "tests.adapters.spark.streaming.flights", *place]
        killed = driver(*program, **{CRASH_VARIABLE: "after_publish:2"})
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert 0 < values_in(tmp_path / "out").total() < len(flights)
        publish_all(spark, kafka_bootstrap, topic, sqlite_store, str(tmp_path))
        assert values_in(tmp_path / "out") == Counter(flights)
        # Batches came before the kill and after it.
        assert len(list((tmp_path / "out").iterdir())) >= 3
    finally:
        broker.drop(topic)
