"""A worker is killed at a named point: what the message and its output have done in the end."""

from __future__ import annotations

import json
import secrets
import signal
from contextlib import contextmanager

import pytest

from idempotent import Message
from idempotent.adapters.copies import KEY_HEADER
from idempotent.testing.adapter_contract import until
from tests.adapters.faststream_plugin.shop import QUEUES, replace, worker
from tests.adapters.kafka.broker import Broker
from tests.adapters.plug_ins import effects
from tests.support.stores import open_store

pytestmark = pytest.mark.slow
DEADLINE_S = 40
POINTS = {"handler": (2, 1), "published": (1, 1), "acknowledged": (1, 2)}
"""Of a point: how often the handler runs, and how often its output is published."""


class OnRabbit:
    """What the application has on RabbitMQ."""

    def __init__(self, rabbit, settings):
        self.rabbit, self.settings = rabbit, settings

    def send(self, order, name="book"):
        body = json.dumps({"order": order} if name == "book" else order).encode()
        self.rabbit.send(Message(f"{self.settings.queue}.{name}", body, id=order))

    def outputs(self):
        return [(each.id, each.body) for each in self.rabbit.look(f"{self.settings.queue}.out")]

    def dead(self):
        return [each.id for each in self.rabbit.look(f"{self.settings.queue}.dead")]

    def declare(self):
        """The queue, before the application does, so that a message waits for it."""
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{self.settings.queue}.dead"}
        for name in QUEUES:
            self.rabbit.declare(f"{self.settings.queue}.{name}", **dead)

    def is_settled(self):
        return self.rabbit.depth(f"{self.settings.queue}.book") == 0


class OnKafka:
    """What the application has on Kafka."""

    def __init__(self, broker, settings):
        self.broker, self.settings = broker, settings

    def declare(self):
        for name in ("book", "out"):
            self.broker.make(f"{self.settings.queue}.{name}")

    def send(self, order):
        self.broker.send(f"{self.settings.queue}.book", json.dumps({"order": order}).encode())
        self.broker.flush()

    def outputs(self):
        found = self.broker.read_raw(f"{self.settings.queue}.out")
        return [(dict(each.headers())[KEY_HEADER], each.value()) for each in found]

    def is_settled(self):
        return self.broker.committed(f"group-{self.settings.queue}", f"{self.settings.queue}.book") == 1


@pytest.fixture(params=["redis", "postgres-transactional"])
def on_rabbit(request, rabbit, settings):
    """An application over each checker."""
    kind, _, transactional = request.param.partition("-")
    with contextmanager(open_store)(kind, request, reuse=True) as store:
        made = replace(settings, url=store.url, table=store.table, is_transactional=bool(transactional))
        shop = OnRabbit(rabbit, made)
        shop.declare()
        yield shop


@pytest.fixture
def on_kafka(request, kafka_bootstrap, settings):
    with contextmanager(open_store)("postgres", request, reuse=True) as store:
        made = replace(
            settings, broker=kafka_bootstrap, url=store.url, table=store.table, is_transactional=True
        )
        shop = OnKafka(Broker(kafka_bootstrap), made)
        shop.declare()
        yield shop


def die_and_end(shop, point):
    """A worker that dies at the point, and then one that lives."""
    order = secrets.token_hex(6)
    shop.send(order)
    with worker(replace(shop.settings, dies=point)) as first:
        assert first.wait(DEADLINE_S) == -signal.SIGKILL
    runs, times = POINTS[point]
    with worker(shop.settings):
        outputs = until(lambda: found if len(found := shop.outputs()) >= times else None, "the outputs")
        until(shop.is_settled, "a settled message")
    assert shop.settings.lines().count(f"book {order}") == runs
    assert shop.outputs() == outputs
    assert len(outputs) == times
    assert len(set(outputs)) == 1
    assert json.loads(outputs[0][1]) == {"order": order, "clerk": "alice"}
    if shop.settings.is_transactional:
        assert effects(shop.settings) == [order]
    assert shop.is_settled()


@pytest.mark.parametrize("point", POINTS)
def test_killed_on_rabbitmq_no_output_is_lost_and_copies_have_its_id(on_rabbit, point):
    die_and_end(on_rabbit, point)


@pytest.mark.parametrize("point", POINTS)
def test_killed_on_kafka_no_output_is_lost_and_copies_have_its_id(on_kafka, point):
    die_and_end(on_kafka, point)


def test_a_message_whose_effect_is_unknown_is_rejected(rabbit, settings):
    shop = OnRabbit(rabbit, settings)
    shop.declare()
    shop.send("7", "park")
    with worker(settings) as first:
        assert first.wait(DEADLINE_S) == -signal.SIGKILL
    with worker(settings):
        until(lambda: shop.dead() == ["7"], "a dead letter")
    assert settings.lines().count("park 7") == 1
