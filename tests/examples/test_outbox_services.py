"""examples/outbox_services.py over each broker: each order is booked and charged once, although it came twice."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
import sqlalchemy as sa

from idempotent import Message
from idempotent.adapters import adapter_from_url
from tests.adapters.kafka.broker import Broker
from tests.outbox.brokers import BROKERS
from tests.project.house import ROOT

SUBJECTS = ("shop.orders", "shop.invoices")
ORDERS = [f"order-{number}" for number in range(20)]
WITHIN_S = 120.0


@pytest.fixture(params=["rabbitmq", "kafka", "activemq"])
def url(request):
    with BROKERS[request.param](request) as place:
        place.make(*SUBJECTS)
        yield f"{place.url}?ordering=key" if request.param == "kafka" else place.url
        if request.param == "kafka":  # names that another run of this test needs again
            broker = Broker(request.getfixturevalue("kafka_bootstrap"))
            for subject in SUBJECTS:
                broker.drop(subject)
                broker.drop(f"{subject}.dlq")


def started(service, url, folder):
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "outbox_services.py"), service],
        cwd=folder,
        env={**os.environ, "BROKER_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rows(folder, table):
    if not (folder / f"{table}.db").exists():
        return []
    engine = sa.create_engine(f"sqlite:///{folder / table}.db")
    try:
        with engine.connect() as connection:
            return sorted(connection.scalars(sa.text(f"SELECT id FROM {table}")).all())
    except sa.exc.OperationalError:  # not made yet
        return []
    finally:
        engine.dispose()


def send(url, orders):
    adapter = adapter_from_url(url)
    adapter.open([])
    bodies = [json.dumps({"id": order, "customer": order[-1]}).encode() for order in orders]
    adapter.publish_many(
        [Message("shop.orders", body, id=order) for order, body in zip(orders, bodies, strict=True)]
    )
    adapter.close()


@pytest.mark.slow
def test_each_order_is_booked_and_charged_once_although_a_service_is_killed(url, tmp_path):
    send(url, [*ORDERS, *ORDERS])
    with ExitStack() as stack:

        def start(service):
            process = started(service, url, tmp_path)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        orders, billing = start("orders"), start("billing")
        wait_for(tmp_path, "orders", 1, orders)
        orders.kill()
        orders = start("orders")
        send(
            url, ["late-1"]
        )  # the new process may have nothing else to do: it must have begun when it is stopped
        wait_for(tmp_path, "billing", len(ORDERS) + 1, billing)
        for process in (orders, billing):
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=150)
            assert process.returncode == 0, err
    assert rows(tmp_path, "orders") == rows(tmp_path, "billing") == sorted([*ORDERS, "late-1"])
    assert out.count("charged") == len(ORDERS) + 1


def wait_for(folder, table, count, process):
    deadline = time.monotonic() + WITHIN_S
    while len(rows(folder, table)) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, rows(folder, table)
        time.sleep(0.2)
