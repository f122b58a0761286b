"""What differs on Kafka: positions as ids, a returned message is read again, and a rejected one is skipped."""

from __future__ import annotations

import json
import secrets
import time

import pytest

from idempotent.adapters.copies import KEY_HEADER
from idempotent.testing.adapter_contract import until
from tests.adapters.faststream_plugin.shop import Settings, worker
from tests.adapters.faststream_plugin.test_outcomes import held
from tests.adapters.kafka.broker import Broker
from tests.support.tables import new_name

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker(kafka_bootstrap):
    return Broker(kafka_bootstrap)


@pytest.fixture(scope="module")
def app(broker, redis_url, tmp_path_factory):
    """The settings of an application that runs."""
    name = f"faststream-{secrets.token_hex(6)}"
    ran = tmp_path_factory.mktemp("faststream") / "ran"
    settings = Settings(broker.bootstrap, name, str(ran), redis_url, new_name())
    for topic in ("book", "out"):
        broker.make(f"{name}.{topic}")
    with worker(settings):
        yield settings


@pytest.fixture
def order():
    return secrets.token_hex(6)


def send(broker, app, body, **headers):
    broker.send(f"{app.queue}.book", json.dumps(body).encode(), **headers)
    broker.flush()


def outputs(broker, app, order):
    found = [each for each in broker.read_raw(f"{app.queue}.out") if order.encode() in each.value()]
    return [(dict(each.headers())[KEY_HEADER], each.value()) for each in found]


def test_a_record_is_its_position_unless_a_header_has_its_id(broker, app, order):
    for _ in range(2):
        send(broker, app, {"order": order})
        send(broker, app, {"order": order}, **{KEY_HEADER: order})
    found = until(lambda: found if len(found := outputs(broker, app, order)) == 4 else None, "four outputs")
    assert len({identity for identity, _ in found}) == 3
    assert app.lines().count(f"book {order}") == 3


def test_a_record_in_use_is_read_again(broker, app, order):
    # The group of a Kafka subscriber is a part of its keys.
    with held(app, "book", order, group_id=f"group-{app.queue}"):
        send(broker, app, {"order": order}, **{KEY_HEADER: order})
        time.sleep(4 * app.hold_s)
        assert not app.lines().count(f"book {order}")
    until(lambda: outputs(broker, app, order), "an output")
    assert app.lines().count(f"book {order}") == 1


def test_a_rejected_record_is_skipped(broker, app, order):
    send(broker, app, {"number": order})
    send(broker, app, {"order": order})
    until(lambda: outputs(broker, app, order), "an output")
    assert app.lines().count(f"book {order}") == 1
    high = len(broker.read_raw(f"{app.queue}.book"))
    until(lambda: broker.committed(f"group-{app.queue}", f"{app.queue}.book") == high, "all committed")
