"""The example of Kafka, Spark's own connector and a table, with a driver that is killed: to the last row."""

import json
import random
import secrets
import signal
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import Producer

from examples.demo.flights import Flight, read_flights
from idempotent.testing.crashpoints import CRASH_VARIABLE
from tests.adapters.kafka.broker import TIMEOUT_S, Broker
from tests.adapters.spark.programs import driver
from tests.adapters.spark.support.migrated import sqlite_url

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1700)]
FLIGHTS, TOGETHER, AGAIN, PARTITIONS = 4000, 100, 1000, 3
# A driver goes on with what the one before has published, and dies after the next.
KILLS = ["after_publish:1", "after_publish:2", "after_publish:2"]


class AbortedError(Exception):
    """Ends a transaction."""


class Topic:
    """Deliveries in seven parts: before and during each start that is killed, and before the last one."""

    def __init__(self, broker, name, deliveries):
        self._broker = broker
        self._name = name
        self._rng = random.Random(11)
        self._parts = iter([deliveries[part::7] for part in range(7)])

    def grow(self, pause_s=0.0):
        for flight in next(self._parts):
            body = json.dumps(flight._asdict()).encode()
            # A producer's second try may go to another partition.
            self._broker.send(self._name, body, partition=self._rng.randrange(PARTITIONS))
            time.sleep(pause_s)
        self._broker.flush()

    @contextmanager
    def transaction(self, flights):
        """Records in two partitions whose transaction is open in the block; an error aborts it."""
        settings = {"transactional.id": self._name, "transaction.timeout.ms": 900_000}
        producer = Producer({"bootstrap.servers": self._broker.bootstrap, **settings})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for number, flight in enumerate(flights):
            producer.produce(self._name, json.dumps(flight._asdict()), partition=number % 2)
        producer.flush(TIMEOUT_S)
        try:
            yield
        except AbortedError:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)

    @contextmanager
    def growing(self):
        thread = threading.Thread(target=self.grow, kwargs={"pause_s": 0.01})
        thread.start()
        yield
        thread.join()


def rows_in(folder):
    """The flights of the table, and its runs."""
    if not (folder / "flights.db").exists():
        return Counter(), set()
    with closing(sqlite3.connect(folder / "flights.db")) as connection:
        rows = connection.execute("SELECT run_id, flight, distance, arr_delay FROM flights").fetchall()
    return Counter(Flight(*row[1:]) for row in rows), {row[0] for row in rows}


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_each_flight_of_a_growing_topic_is_in_the_table_once(kind, kafka_bootstrap, tmp_path):
    broker, name = Broker(kafka_bootstrap), f"flights-{secrets.token_hex(4)}"
    broker.make(name, PARTITIONS)
    sqlite_url(tmp_path / "runs.db")
    flights = list(read_flights(FLIGHTS))
    in_transaction, others = flights[:TOGETHER], flights[TOGETHER:]
    sent = [*others, *random.Random(7).sample(flights, AGAIN)]
    random.Random(13).shuffle(sent)
    topic = Topic(broker, name, sent)

    def drive_and_kill(at):
        before = rows_in(tmp_path)[0].total()
        topic.grow()
        with topic.growing():
            killed = drive(**{CRASH_VARIABLE: at})
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert before < rows_in(tmp_path)[0].total() < FLIGHTS

    def drive(**environment):
        program = ["-m", "tests.adapters.spark.streaming.flights", kind, str(tmp_path)]
        return driver(*program, KAFKA_BOOTSTRAP=kafka_bootstrap, KAFKA_TOPIC=name, **environment)

    try:
        with topic.transaction([flight._replace(flight=f"{flight.flight}/never") for flight in others[:9]]):
            raise AbortedError
        with topic.transaction(in_transaction):
            drive_and_kill(KILLS[0])
        for at in KILLS[1:]:
            drive_and_kill(at)
        topic.grow()
        done = drive()
        assert done.returncode == 0, done.stderr
        published, runs = rows_in(tmp_path)
        assert published == Counter(flights)
        assert len(runs) > len(KILLS)
    finally:
        broker.drop(name)
