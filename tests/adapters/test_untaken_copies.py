"""A dead letter that the broker does not take: the health file says so, and a redrive says where it looked in vain."""

import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from idempotent import Message, Registry, Worker
from idempotent.adapters import adapter_from_url
from idempotent.adapters.base import Adapter
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError
from idempotent.policy import Backoff
from idempotent.redrive import redrive
from idempotent.testing.adapter_contract import until
from tests.adapters.activemq.member import send as send_to_activemq
from tests.adapters.activemq.test_no_room import full
from tests.adapters.kafka.broker import Broker
from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.support.services import PrivateActiveMq

QUICK = Backoff(initial_s=0.2, maximum_s=0.5)


@dataclass
class Case:
    """A message that dies on its first attempt, and whose letter the broker does not take."""

    subject: str
    adapter: Adapter
    target: str
    spoil: Callable[[], object] = lambda: None
    """The broker takes no letter from now on, if it did before."""
    mend: Callable[[], object] = lambda: None
    """From now on it does."""


@contextmanager
def on_kafka(request, monkeypatch):
    """A topic without its dead-letter topic, which nobody makes."""
    monkeypatch.setattr("idempotent.adapters.kafka.adapter._COPY_BACKOFF", QUICK)
    broker = Broker(request.getfixturevalue("kafka_bootstrap"))
    topic = f"orders-{secrets.token_hex(6)}"
    broker.make(topic)
    broker.produce(topic, b"poison", None, [])
    quick = {"topic.metadata.propagation.max.ms": 300, "topic.metadata.refresh.interval.ms": 300}
    adapter = KafkaAdapter(broker.bootstrap, producer_config=quick)
    yield Case(topic, adapter, f"{topic}.dlq", mend=partial(broker.make, f"{topic}.dlq"))


@contextmanager
def on_rabbitmq(request, monkeypatch):
    """A queue without its dead-letter queue, which the adapter may not make."""
    monkeypatch.setattr("idempotent.adapters.rabbitmq.copies._BACKOFF", QUICK)
    rabbit = Rabbit(request.getfixturevalue("rabbitmq_url"))
    queue = rabbit.declare_all(rabbit.name())
    rabbit.send(Message(queue, b"poison", id="1"))
    dead = f"{queue}.dead"
    yield Case(
        queue,
        rabbit.adapter(declare=False),
        dead,
        partial(rabbit.delete, dead),
        partial(rabbit.declare, dead),
    )
    rabbit.clean_up()


@contextmanager
def on_activemq(request, monkeypatch):
    """A broker without room: it makes every destination that it permits, and what it forbids ends the worker.

    It may need more than a second to answer the first commit after it had no room.
    """
    monkeypatch.setattr("idempotent.adapters.activemq.copying._COPY_BACKOFF", QUICK)
    server = request.getfixturevalue("spare")(PrivateActiveMq, "small-store")
    name = f"orders-{secrets.token_hex(6)}"
    send_to_activemq(server.url, name, "poison")
    with ExitStack() as filling:
        filling.enter_context(full(server.url, name))
        adapter = adapter_from_url(f"{server.url}?receipt_timeout_s=5&ack=transacted")
        yield Case(name, adapter, f"/queue/{name}.dead", mend=filling.close)


PLACES = pytest.mark.parametrize(
    "place", [on_kafka, on_rabbitmq, pytest.param(on_activemq, marks=pytest.mark.slow)]
)


@PLACES
def test_the_health_file_names_the_target_until_it_takes_the_copy(place, request, monkeypatch, tmp_path):
    health = tmp_path / "health"
    with place(request, monkeypatch) as case:
        registry = Registry()

        @registry.consumer(case.subject, checker=MemoryChecker(), max_attempts=1)
        def handle(message):
            case.spoil()
            raise ValueError("poison")

        worker = Worker(registry, case.adapter, health_file=health, gc_interval_s=None)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            begin = f"ready\nwaits for: {case.target} to take 1 copy: "
            until(lambda: health.exists() and health.read_text().startswith(begin), "the trouble")
            case.mend()
            until(lambda: health.read_text() == "ready\n", "its end")
        finally:
            worker.stop()
            thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("place", [on_kafka, on_rabbitmq])
def test_a_redrive_names_what_it_cannot_read_and_what_to_do(place, request, monkeypatch):
    with place(request, monkeypatch) as case:
        case.spoil()
        consumer = Registry().consumer(case.subject, checker=MemoryChecker())(lambda message: None)
        with pytest.raises(AdapterError, match=r"not exist.*create it") as told:
            redrive(consumer, case.adapter)
        assert case.target in str(told.value)
