"""Java's Kafka client: its producers, its partitioner, and what it reads of our dead letters."""

import os
import secrets

import pytest

from idempotent import Message, Outcome
from idempotent.adapters.kafka import KafkaAdapter
from tests.clients.java_kafka import JavaKafka, missing
from tests.clients.service import Service
from tests.support.services import is_required

PARTITIONS = 4
KEYS = [f"customer-{number}" for number in range(8)]


@pytest.fixture(scope="session")
def java(pytestconfig, tmp_path_factory):
    absent = missing()
    if absent is not None:
        required = is_required(os.environ, option=pytestconfig.getoption("require_services"))
        (pytest.fail if required else pytest.skip)(f"no Java client of Kafka: {absent}")
    return JavaKafka(tmp_path_factory.mktemp("java"))


@pytest.fixture
def wide(broker):
    """A topic of several partitions."""
    name = f"orders-{secrets.token_hex(6)}"
    broker.make(name, PARTITIONS)
    broker.make(f"{name}.dlq", PARTITIONS)
    return name


def event(message):
    return message.headers["event"]


def places(broker, topic):
    """The partitions of each key."""
    found = {}
    for raw in broker.read_raw(topic):
        found.setdefault(raw.key().decode(), set()).add(raw.partition())
    return found


@pytest.mark.slow
def test_an_idempotent_producer_sets_no_id_so_a_second_send_is_another_message(
    java, broker, topic, serve_topic
):
    java.send(broker, topic, "customer-1", "customer-1")
    service = serve_topic()
    assert service.work(2) == [Outcome.PROCESSED] * 2
    (first, second) = service.effects
    assert (first.id.split("/")[1:3], second.id.split("/")[1:3]) == (["0", "0"], ["0", "1"])
    assert (first.body, first.raw.key()) == (b"customer-1", b"customer")
    assert first.headers == {"event": "customer-1", "none": None, "twice": "2"}


@pytest.mark.slow
def test_with_an_event_id_as_the_key_a_second_send_is_a_duplicate(java, broker, topic, serve_topic):
    java.send(broker, topic, "customer-1", "customer-1", "customer-2")
    service = serve_topic(key=event)
    assert service.work(3) == [Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.PROCESSED]


@pytest.mark.slow
def test_of_transactions_only_the_committed_are_handled(java, broker, topic, serve_topic):
    java.transact(broker, topic, "aborted-1", "kept-1", "aborted-2", "kept-2")
    service = serve_topic()
    assert service.work(2) == [Outcome.PROCESSED] * 2
    assert [effect.body for effect in service.effects] == [b"kept-1", b"kept-2"]
    # Behind the records are the marks of the transactions, which are settled with them.
    assert broker.committed("billing", topic) == 7


@pytest.mark.slow
def test_java_reads_a_dead_letter_as_the_record_that_it_was(java, broker, topic, serve_topic):
    java.transact(broker, topic, "kunde-ö-1")
    serve_topic().bury()
    (letter,) = java.read(broker, f"{topic}.dlq", 1)
    assert (letter.key, letter.value) == ("kunde-ö", "kunde-ö-1")
    theirs = {name: value for name, value in letter.headers.items() if not name.startswith("x-idempotent-")}
    assert theirs == {"event": "kunde-ö-1", "none": "null", "twice": "2"}
    assert letter.headers["x-idempotent-reason"] == "ValueError: no such customer: Zoë"
    assert letter.headers["x-idempotent-outcome"] == "dead"
    assert letter.headers["x-idempotent-origin"] == f"{topic}/0/0"


@pytest.mark.slow
def test_of_one_key_java_and_librdkafka_choose_different_partitions(java, broker, wide):
    java.send(broker, wide, *(f"{key}-1" for key in KEYS))
    of_java = places(broker, wide)
    assert published(broker, f"{wide}.dlq") != of_java
    broker.make(f"{wide}.murmur2", PARTITIONS)
    options = {"producer_config": {"partitioner": "murmur2_random"}}
    assert published(broker, f"{wide}.murmur2", **options) == of_java


def published(broker, topic, **options):
    """The partitions into which an adapter publishes the keys."""
    adapter = KafkaAdapter(broker.bootstrap, **options)
    adapter.publish_many([Message(topic, id=key) for key in KEYS])
    adapter.close()
    return places(broker, topic)


@pytest.mark.slow
@pytest.mark.parametrize("partitioner", ["consistent_random", "murmur2_random"])
def test_a_redriven_record_returns_to_javas_partition_and_a_letter_lies_where_the_partitioner_says(
    java, broker, wide, partitioner
):
    java.send(broker, wide, *(f"{key}-1" for key in KEYS))
    of_java = places(broker, wide)
    options = {"producer_config": {"partitioner": partitioner}}
    service = Service(lambda: KafkaAdapter(broker.bootstrap, ordering="none", **options), wide, key=event)
    service.bury(len(KEYS))
    assert (places(broker, f"{wide}.dlq") == of_java) == (partitioner == "murmur2_random")
    service.redrive(len(KEYS))
    assert places(broker, wide) == of_java
