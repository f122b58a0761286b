"""Debezium: its outbox events and its change events, sent twice by a Kafka Connect that was killed.

Real records of a real connector. To fetch it takes 36 MB, to start it about 8 s, and it starts twice.
"""

import os
import secrets

import pytest

from idempotent import Outcome, keys
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.broker import Broker
from tests.clients.debezium.server import Debezium, changes_and_events
from tests.clients.java_kafka import missing
from tests.clients.service import Service
from tests.support.services import PrivatePostgres, is_required

pytestmark = pytest.mark.slow

IDS = [f"0b8a6f5e-0000-4000-8000-00000000000{number}" for number in range(2)]
TABLES = (
    "CREATE TABLE orders (id int PRIMARY KEY, cents int)",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb)",
)
CHANGES = (
    "INSERT INTO orders VALUES (1, 100)",
    "UPDATE orders SET cents = 200",
    "DELETE FROM orders",
)


@pytest.fixture(scope="module")
def captured(pytestconfig, kafka_bootstrap, spare, tmp_path_factory):
    """The topics of the changes and of the events: all sent twice but the last event."""
    absent = missing()
    if absent is not None:
        required = is_required(os.environ, option=pytestconfig.getoption("require_services"))
        (pytest.fail if required else pytest.skip)(f"no Debezium: {absent}")
    name, broker = f"db_{secrets.token_hex(6)}", Broker(kafka_bootstrap)
    changes, events = f"{name}_changes.public.orders", f"{name}.events"
    for topic in (changes, events):
        broker.make(topic)
        broker.make(f"{topic}.dlq")
    postgres = spare(PrivatePostgres, "-c", "wal_level=logical")
    debezium = Debezium(
        tmp_path_factory.mktemp("debezium"), postgres, kafka_bootstrap, changes_and_events(name)
    )
    debezium.sql("DROP TABLE IF EXISTS orders, outbox", *TABLES)
    try:
        debezium.start()
        debezium.sql(*CHANGES, outbox(IDS[0], events))
        until(lambda: sizes(broker, changes, events) == (4, 1), "the changes")
        debezium.kill()
        debezium.sql(outbox(IDS[1], events))
        debezium.start()
        until(lambda: sizes(broker, changes, events) == (8, 3), "the changes again")
    finally:
        debezium.kill()
    return changes, events


def outbox(id_, topic):
    return f"INSERT INTO outbox VALUES ('{id_}', '{topic}', '7', 'OrderPaid', '{{\"cents\": 100}}')"


def sizes(broker, *topics):
    return tuple(len(broker.read_raw(topic)) for topic in topics)


def serve(broker, topic, **options):
    return Service(lambda: KafkaAdapter(broker.bootstrap), topic, **options)


def test_an_event_of_the_outbox_that_was_sent_twice_is_handled_once(broker, captured):
    _, topic = captured
    service = serve(broker, topic, key=keys.debezium)
    assert service.work(3) == [Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.PROCESSED]
    assert [effect.headers["id"] for effect in service.effects] == IDS
    assert service.effects[0].json() == {"cents": 100}
    assert service.effects[0].raw.key() == b'"7"'


def test_without_a_key_the_second_sending_is_another_message(broker, captured):
    _, topic = captured
    assert serve_anew(broker, topic).work(3) == [Outcome.PROCESSED] * 3


def serve_anew(broker, topic):
    """In a group of its own, which reads the topic from its beginning."""
    return Service(lambda: KafkaAdapter(broker.bootstrap), topic, group="mail")


def test_a_change_that_was_sent_twice_is_handled_once_and_a_tombstone_has_no_body(broker, captured):
    topic, _ = captured
    service = serve(broker, topic, key=keys.debezium)
    first, second = service.work(8)[:4], service.outcomes[4:]
    assert first == [Outcome.PROCESSED] * 4
    assert second == [*[Outcome.DUPLICATE] * 3, Outcome.PROCESSED]
    *changes, tombstone, again = service.effects
    assert [change.json()["op"] for change in changes] == ["c", "u", "d"]
    assert changes[2].json()["before"] == {"id": 1, "cents": 200}
    for message in (tombstone, again):
        assert (message.body, message.raw.value(), message.raw.key()) == (None, None, b'{"id":1}')


def test_a_dead_letter_of_a_tombstone_is_a_tombstone(broker, captured):
    topic, _ = captured
    service = serve_anew(broker, topic)
    service.bury(8)
    letters = broker.read_raw(f"{topic}.dlq")
    assert [letter.value() is None for letter in letters] == [*[False] * 3, True] * 2
    assert {letter.key() for letter in letters} == {b'{"id":1}'}
