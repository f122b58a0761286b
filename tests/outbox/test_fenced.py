"""Relays to Kafka with fences: one that was paused cannot publish late."""

import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from idempotent import Message, Registry
from idempotent.adapters import adapter_from_url
from idempotent.adapters.base import Fences
from idempotent.adapters.copies import KEY_HEADER
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError, ConfigurationError, PublishError
from idempotent.outbox import Relay
from tests.adapters.kafka.broker import Broker
from tests.outbox.picky import relay, until
from tests.project.house import ROOT


@pytest.fixture
def broker(kafka_bootstrap):
    return Broker(kafka_bootstrap)


@pytest.fixture
def topic(broker):
    name = f"invoices-{secrets.token_hex(6)}"
    broker.make(name, partitions=2)
    return name


@pytest.fixture
def name():
    return f"relays-{secrets.token_hex(6)}"


@pytest.fixture
def fenced(kafka_bootstrap, name):
    """`fenced()`: the adapter of another relay of the same outbox."""
    adapters = []

    def fenced(**options):
        adapter = KafkaAdapter(kafka_bootstrap, fenced=True, transactional_id=name, **options)
        adapters.append(adapter)
        adapter.open([])
        return adapter

    yield fenced
    for adapter in adapters:
        adapter.close()


def bodies(broker, topic):
    """What a read_committed reader sees when no transaction is open any more."""
    until(lambda: not broker.has_open_transaction(topic, 2), "a transaction stays open")
    return [raw.value().decode() for raw in broker.read_raw(topic)]


def messages(topic, *bodies):
    return [Message(topic, str(body).encode(), id=f"m{body}", key="k") for body in bodies]


def test_a_bucket_whose_fence_another_relay_took_is_refused_and_other_buckets_are_not(broker, topic, fenced):
    paused, other = fenced().fences, fenced().fences
    paused.take({1, 2})
    other.take({1})
    with pytest.raises(PublishError) as refused:
        paused.publish(messages(topic, "late", "good"), [1, 2])
    assert list(refused.value.unknown) == [0]
    other.publish(messages(topic, "next"), [1])
    assert sorted(bodies(broker, topic)) == ["good", "next"]


def test_a_transaction_that_was_open_at_the_takeover_is_seen_by_no_reader(
    broker, topic, fenced, kafka_bootstrap, name
):
    paused = Producer({"bootstrap.servers": kafka_bootstrap, "transactional.id": f"{name}-1"})
    paused.init_transactions(30)
    paused.begin_transaction()
    paused.produce(topic, b"open")
    paused.flush(30)
    other = fenced().fences
    other.take({1})
    other.publish(messages(topic, "mine"), [1])
    assert bodies(broker, topic) == ["mine"]


def test_a_publication_never_takes_a_fence_by_itself(broker, topic, fenced):
    """What it publishes was read when another relay may have had the bucket."""
    fences = fenced().fences
    with pytest.raises(PublishError) as refused:
        fences.publish(messages(topic, "never taken"), [1])
    assert list(refused.value.unknown) == [0]
    fences.take({1})
    fences.take({2})
    with pytest.raises(PublishError):
        fences.publish(messages(topic, "given back"), [1])
    fenced().fences.take({2})
    for _ in range(2):
        with pytest.raises(PublishError):
            fences.publish(messages(topic, "fenced"), [2])
    assert bodies(broker, topic) == []


@pytest.mark.slow
def test_a_refused_message_takes_its_bucket_with_it_and_no_other(broker, topic, fenced):
    own = {"topic.metadata.propagation.max.ms": 300, "transaction.timeout.ms": 300_000}
    fences = fenced(producer_config=own).fences
    fences.take({1, 2})
    missing = Message(f"{topic}-missing", b"x", id="x")
    with pytest.raises(PublishError) as failure:
        fences.publish([*messages(topic, "a"), missing, *messages(topic, "b")], [1, 1, 2])
    assert list(failure.value.refused) == [1]
    assert list(failure.value.unknown) == [0]
    assert bodies(broker, topic) == ["b"]
    fences.take({1, 2})
    fences.publish(messages(topic, "a"), [1])
    assert bodies(broker, topic) == ["b", "a"]


def test_of_a_batch_with_a_message_that_is_too_large_that_one_is_refused_when_it_is_alone(
    broker, topic, fenced
):
    broker.configure(topic, **{"max.message.bytes": "1000"})
    fences = fenced().fences
    large = Message(topic, b"x" * 5000, id="large", key="k")
    fences.take({1})
    with pytest.raises(PublishError) as together:
        fences.publish([*messages(topic, "a"), large], [1, 1])
    assert sorted(together.value.unknown) == [0, 1]
    fences.take({1})
    with pytest.raises(PublishError) as alone:
        fences.publish([large], [1])
    assert list(alone.value.refused) == [0]


def test_a_broker_that_is_away_gives_no_fence():
    adapter = KafkaAdapter("127.0.0.1:1", fenced=True, transactional_id="relays", publish_timeout_s=0.2)
    with pytest.raises(AdapterError, match="relays-<bucket>"):
        adapter.fences.take({1, 2})
    adapter.close()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"fenced": True}, "transactional_id="),
        ({"transactional_id": "shop"}, "fenced=True alone"),
        ({"fenced": True, "transactional_id": "shop", "semantics": "exactly_once"}, "cannot go with"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(options, error):
    with pytest.raises(ConfigurationError, match=error):
        KafkaAdapter("127.0.0.1:1", **options)


def test_an_adapter_with_fences_takes_no_consumers():
    adapter = adapter_from_url("kafka://127.0.0.1:1?fenced=true&transactional_id=shop")
    consumer = Registry().consumer("orders", group="shop", checker=MemoryChecker())(lambda message: None)
    with pytest.raises(ConfigurationError, match="only publishes"):
        adapter.open([consumer])


@pytest.mark.slow
@pytest.mark.parametrize("sql_store", ["postgres"], indirect=True)
def test_a_relay_with_fences_publishes_all_in_order_and_holds_what_is_refused(
    broker, topic, fenced, outbox, waiting, sql_store
):
    adapter = fenced(producer_config={"topic.metadata.propagation.max.ms": 300})
    with sql_store.admin_engine.begin() as connection:
        for number in range(40):
            for key in "abcd":
                subject = f"{topic}-missing" if (key, number) == ("d", 3) else topic
                outbox.send(connection, Message(subject, f"{key} {number}".encode()), order_key=key)
    with relay(outbox, adapter):
        until(
            lambda: outbox.store.stats().held == 37 and not outbox.store.stats().waiting, outbox.store.stats
        )
        broker.make(f"{topic}-missing")
        until(lambda: not waiting())
    published = bodies(broker, topic)
    for key in "abcd":
        mine = [int(body.split()[1]) for body in published if body[0] == key]
        assert list(dict.fromkeys(mine)) == [number for number in range(40) if (key, number) != ("d", 3)]


@pytest.mark.slow
@pytest.mark.parametrize("sql_store", ["postgres"], indirect=True)
def test_behind_fences_a_message_is_deleted_before_the_next_one_is_published(
    broker, topic, fenced, outbox, waiting, tables, sql_store
):
    """Else a relay that takes over would publish both again: 1 2 1 2."""
    with sql_store.admin_engine.begin() as connection:
        for number in (1, 2, 3):
            outbox.send(connection, Message(topic, str(number).encode()), order_key="k")
    first = sa.select(tables.waiting.c.id).order_by(tables.waiting.c.id).limit(1)
    with sql_store.admin_engine.connect() as other:
        other.execute(first.with_for_update())
        with relay(outbox, fenced()):
            until(lambda: bodies(broker, topic) == ["1"])
            time.sleep(2.0)
            assert bodies(broker, topic) == ["1"]
            other.rollback()
            until(lambda: not waiting())
    assert bodies(broker, topic) == ["1", "2", "3"]


class Overtaken(Fences):
    """Fences of which another relay had each bucket until this one took it, and published what was there."""

    def __init__(self, publish_all):
        self._publish_all, self.taken, self.published = publish_all, set(), []

    def take(self, buckets):
        if set(buckets) - self.taken:
            self._publish_all()
        self.taken = set(buckets)

    def publish(self, messages, buckets):
        assert set(buckets) <= self.taken
        self.published += [message.body.decode() for message in messages]

    def close(self):
        self.taken = set()


def test_a_relay_reads_a_bucket_after_it_has_taken_its_fence(outbox, send, waiting, tables, sql_store):
    def publish_all():
        with sql_store.admin_engine.begin() as connection:
            connection.execute(tables.waiting.delete())

    adapter = MemoryAdapter(MemoryBroker())
    adapter.fences = Overtaken(publish_all)
    send(*range(100))
    with relay(outbox, adapter):
        until(lambda: len(adapter.fences.taken) == 64)
        send("afterwards")
        until(lambda: adapter.fences.published)
        until(lambda: not waiting())
    assert adapter.fences.published == ["afterwards"]


@contextmanager
def late_relay(sql_store, bootstrap, name):
    url = sa.make_url(sql_store.url).render_as_string(hide_password=False)
    arguments = [sys.executable, "-m", "tests.outbox.late_relay", url, sql_store.table, bootstrap, name]
    with subprocess.Popen(
        arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as late:
        try:
            yield late
        finally:
            late.kill()


@pytest.mark.slow
@pytest.mark.parametrize("sql_store", ["postgres", "mysql"], indirect=True)
@pytest.mark.parametrize("is_fenced", [True, False], ids=["fenced", "unfenced"])
def test_a_relay_that_was_paused_past_its_lease_publishes_late_only_without_fences(
    is_fenced, broker, topic, name, outbox, waiting, sql_store
):
    options = {"fenced": True, "transactional_id": name} if is_fenced else {}
    with sql_store.admin_engine.begin() as connection:
        for number in range(50):
            outbox.send(connection, Message(topic, str(number).encode()), order_key=f"k{number % 5}")
    with late_relay(sql_store, broker.bootstrap, name if is_fenced else "") as late:
        assert late.stdout.readline() == "read\n", late.stderr.read()
        with Relay(outbox, KafkaAdapter(broker.bootstrap, **options), lease_s=3.0):
            until(lambda: not waiting())
            late.send_signal(signal.SIGCONT)
            assert late.stdout.readline() == "went on\n"
            with sql_store.admin_engine.begin() as connection:
                outbox.send(connection, Message(topic, b"afterwards"))
            until(lambda: not waiting())
        late.send_signal(signal.SIGTERM)
        _, log = late.communicate(timeout=60)
    assert late.returncode == 0, log
    counted = Counter(dict(raw.headers())[KEY_HEADER] for raw in broker.read_raw(topic))
    assert len(counted) == 51
    repeated = sum(counted.values()) - 51
    assert (repeated == 0) if is_fenced else (repeated >= 5), log
