"""A record of Kafka whose worker was killed: no restart within its lease commits past it."""

from __future__ import annotations

import json
import signal
import time

import pytest

from idempotent.testing.adapter_contract import until
from tests.adapters.faststream_plugin.shop import Settings, replace, worker
from tests.adapters.kafka.broker import Broker
from tests.support.ageing import age_keys
from tests.support.tables import new_name

pytestmark = pytest.mark.slow
DEADLINE_S = 60
LEASE_S = 600.0
"""Far longer than the test: it ends when the test says so."""


class Topic:
    """The topic of an application, with two partitions."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self.broker, self.settings = broker, settings
        self.name, self.group = f"{settings.queue}.book", f"group-{settings.queue}"
        broker.make(self.name, partitions=2)
        broker.make(f"{settings.queue}.out")

    def send(self, order: str, partition: int) -> None:
        self.broker.send(self.name, json.dumps({"order": order}).encode(), partition=partition)
        self.broker.flush()

    def committed(self, partition: int) -> int | None:
        return self.broker.committed(self.group, self.name, partition)

    def times(self, line: str) -> int:
        return self.settings.lines().count(line)

    def outputs(self) -> set[str]:
        found = self.broker.read_raw(f"{self.settings.queue}.out")
        return {json.loads(each.value())["order"] for each in found}


@pytest.fixture
def topic(kafka_bootstrap, redis_url, tmp_path):
    name = new_name()
    settings = Settings(kafka_bootstrap, name, str(tmp_path / "ran"), redis_url, name, lease_s=LEASE_S)
    made = Topic(Broker(kafka_bootstrap), settings)
    yield made
    for each in (made.name, f"{name}.out"):
        made.broker.drop(each)


def is_held(topic: Topic, times: int) -> None:
    """Wait until so many processes have received the first record: it is neither done nor passed."""
    until(lambda: topic.times("received 0/0") >= times, "the record")
    time.sleep(4 * topic.settings.hold_s)  # long enough to return it, and to acknowledge others
    assert topic.committed(0) is None
    assert topic.times("book held") == 1


def test_a_redeployment_within_the_lease_of_a_killed_worker_loses_no_record(topic):
    topic.send("held", 0)
    with worker(replace(topic.settings, dies="handler")) as first:
        assert first.wait(DEADLINE_S) == -signal.SIGKILL
    with worker(topic.settings) as old:
        until(lambda: topic.times("received 0/0") == 2, "the record, after the restart")
        topic.send("other", 1)
        is_held(topic, 2)
        with worker(topic.settings), worker(topic.settings):
            until(lambda: topic.broker.group(topic.group)[1] == 3, "three members")
            old.terminate()
            old.wait(DEADLINE_S)
            until(lambda: topic.committed(1) == 1, "the other partition")
            is_held(topic, 3)
            age_keys(topic.settings.url, f"{topic.settings.table}:", LEASE_S)
            until(lambda: topic.committed(0) == 1, "the held record")
    assert topic.times("book held") == 2
    assert topic.outputs() == {"held", "other"}
