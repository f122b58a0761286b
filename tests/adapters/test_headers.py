"""`Message.headers`: what the producer sent, through a retry, a death and a redrive, and as a handler sends it on."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message, Registry
from idempotent.adapters.rabbitmq.messages import sendable
from idempotent.checkers import MemoryChecker
from idempotent.migrations import upgrade
from idempotent.outbox import Outbox, Relay
from idempotent.policy import Backoff
from idempotent.redrive import redrive
from idempotent.testing.adapter_contract import until
from tests.adapters.activemq.stomp_client import client
from tests.adapters.conformance_child import GROUP
from tests.adapters.places import open_copying
from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.support.working import run_until

SOON = Backoff(initial_s=0.1, maximum_s=0.1)
TEXTS = {"tenant": "a", "empty": "", "snow": "\N{SNOWMAN}", "a:b": "c:d", "number": "7"}
AMQP = {
    "at": datetime(2026, 11, 26, 9, 30, 1, tzinfo=UTC),
    "price": Decimal("1.10"),
    "nothing": None,
    "yes": True,
    "count": 7,
    "raw": b"\xff\0",
    "table": {"list": [1, {"at": datetime(1999, 1, 1, tzinfo=UTC)}, [b"\xff", None]], "$bytes": "no"},
    "$bytes": {"$bytes": "as it is"},
}
SENT: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "activemq": TEXTS,
        "kafka": {**TEXTS, "raw": b"\xff\0", "nothing": None},
        "memory": {**TEXTS, **AMQP},
        "rabbitmq": {**TEXTS, **AMQP},
    }
)


@pytest.fixture
def place(request):
    yield from open_copying(request.param, request)


@pytest.fixture
def outbox(tmp_path):
    url = f"sqlite:///{tmp_path}/outbox.db"
    upgrade(url)
    with closing(Outbox(sa.create_engine(url))) as made:
        yield made


def shown(headers):
    """Headers to compare: of equal decimals, with their zeros."""
    return {name: str(value) if isinstance(value, Decimal) else value for name, value in headers.items()}


@pytest.mark.parametrize(
    "place", ["activemq", pytest.param("kafka", marks=pytest.mark.slow), "memory", "rabbitmq"], indirect=True
)
def test_headers_are_what_the_producer_sent_whatever_happens_to_a_message(place, outbox, request):
    name = request.node.callspec.params["place"]
    sent = dict(SENT[name])
    orders, mails = place.subject(), place.subject()
    registry, seen, arrived = Registry(), [], {}
    plan = [OSError, OSError, ValueError, OSError, None]

    @registry.consumer(
        orders, group=GROUP, checker=MemoryChecker(), retry_for=(OSError,), backoff=SOON, max_attempts=99
    )
    def on_order(message):
        seen.append(shown(message.headers))
        failure = plan[len(seen) - 1]
        if failure is not None:
            raise failure("as planned")
        engine = outbox.store.connections.engine
        with Session(engine) as session, session.begin():
            outbox.send(session, Message(mails, b"outbox", headers=message.headers))
        publisher = place.adapter()
        publisher.open([])
        with closing(publisher):
            publisher.publish(Message(mails, b"publish", id=secrets.token_hex(4), headers=message.headers))

    @registry.consumer(mails, group=GROUP, checker=MemoryChecker())
    def on_mail(message):
        arrived[message.body] = shown(message.headers)

    place.send(Message(orders, b"order", id="1", headers=sendable(sent)))
    run_until(registry, place.adapter(), lambda: place.dead_letters(orders))
    redrive(on_order, place.adapter(), idle_s=3.0 if name == "kafka" else 0.5)
    relay = Relay(outbox, place.adapter())
    run_until(registry, place.adapter(), lambda: len(arrived) == 2, services=[relay])
    assert seen == [shown(sent)] * 5
    assert arrived == {b"outbox": shown(sent), b"publish": shown(sent)}


def _got(channel, queue):
    method, properties, _ = channel.basic_get(queue)
    return method and (method, properties)


def received(place, subject, tenant):
    """The headers of the message of this tenant, which is acknowledged."""
    registry, seen = Registry(), {}

    @registry.consumer(subject, group=GROUP, checker=MemoryChecker())
    def handle(message):
        seen[message.headers["tenant"]] = dict(message.headers)

    run_until(registry, place.adapter(), lambda: tenant in seen)
    return seen[tenant]


@pytest.mark.parametrize("place", ["rabbitmq"], indirect=True)
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_rabbitmq_notes_about_a_message_is_no_header_of_it(place, kind):
    rabbit, to = Rabbit(place.url), place.subject()
    queue = rabbit.declare(
        rabbit.name(),
        **{"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": to},
    )
    # Those of its plugins are written here; it takes them for what they are.
    shovelled = {"x-shovelled": [{"shovel-name": "s"}], "x-shovelled-timestamp": 1, "x-received-from": []}
    place.send(Message(queue, id="1", headers={**TEXTS, **shovelled}))
    with closing(rabbit.adapter()) as adapter:
        adapter.open([Registry().consumer(queue, checker=MemoryChecker())(lambda _: None)])
        for _ in range(2):
            deliveries = until(lambda: adapter.receive(1, 0.1), "a delivery")
            assert dict(deliveries[0].message.headers) == TEXTS
            adapter.requeue(deliveries[0])
    with rabbit.channel() as channel:
        method, properties = until(lambda: _got(channel, queue), "it, back in its queue")
        assert kind == "classic" or "x-delivery-count" in properties.headers
        channel.basic_reject(method.delivery_tag, requeue=False)
    assert received(place, to, "a") == TEXTS
    rabbit.clean_up()


@pytest.mark.parametrize("place", ["activemq"], indirect=True)
def test_what_activemq_notes_about_a_message_is_no_header_of_it(place):
    """It moves what it gives up to its own queue of dead letters, which a consumer may read as any."""
    subject = place.subject()
    given = {
        **TEXTS,
        "tenant": subject,
        "priority": "9",
        "correlation-id": "c",
        "reply-to": "/queue/r",
        "type": "t",
        "JMSXGroupID": "g",
    }
    with client(place.url) as other:
        other.send("SUBSCRIBE", {"id": "1", "destination": f"/queue/{subject}", "ack": "client-individual"})
        frame = {"destination": f"/queue/{subject}", "persistent": "true", "content-length": "0"}
        other.send("SEND", {**given, **frame})
        other.send("NACK", {"id": other.read().headers["ack"]})
    given.pop("JMSXGroupID")  # STOMP's consumers do not see the group
    assert received(place, "ActiveMQ.DLQ", subject) == given
