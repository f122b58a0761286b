"""The examples of services, with a broker."""

import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.adapters.kafka.broker import Broker

EXAMPLES = Path(__file__).parents[3] / "examples"


@contextmanager
def running(example, bootstrap, folder):
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLES / example)],
        cwd=folder,
        env={**os.environ, "KAFKA_BOOTSTRAP": bootstrap},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as service:
        try:
            yield service
        finally:
            service.kill()


def wait_for_offset(broker, group, topic, offset, service):
    deadline = time.monotonic() + 120
    while broker.committed(group, topic) != offset:
        assert service.poll() is None, service.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture
def broker(kafka_bootstrap):
    broker = Broker(kafka_bootstrap)
    broker.make("orders.paid")
    yield broker
    broker.drop("orders.paid")


@pytest.mark.slow
def test_the_example_ships_each_order_once_and_stops_when_told(broker, tmp_path):
    ids = [secrets.token_hex(4) for _ in range(10)]
    for id_ in [*ids, *ids]:
        broker.send("orders.paid", b'{"order": "%s"}' % id_.encode(), **{"x-idempotent-key": id_})
    broker.flush()
    with running("kafka_service.py", broker.bootstrap, tmp_path) as service:
        wait_for_offset(broker, "shipping", "orders.paid", 20, service)
        service.send_signal(signal.SIGTERM)
        out, err = service.communicate(timeout=150)
    assert service.returncode == 0, err
    assert out.count("shipped order") == 10
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
    with engine.connect() as connection:
        parcels = connection.scalars(sa.text('SELECT "order" FROM parcels')).all()
    engine.dispose()
    assert sorted(parcels) == sorted(ids)


@pytest.mark.slow
def test_the_example_of_a_pipeline_writes_each_invoice_once(broker, tmp_path):
    broker.make("invoices")
    try:
        for order in range(20):
            broker.send("orders.paid", b'{"order": %d}' % order)
            broker.flush()
            if order == 10:
                with running("kafka_pipeline.py", broker.bootstrap, tmp_path) as service:
                    wait_for_offset(broker, "invoicing", "orders.paid", 11, service)
                    service.send_signal(signal.SIGTERM)
                    assert service.wait(150) == 0
        with running("kafka_pipeline.py", broker.bootstrap, tmp_path) as service:
            wait_for_offset(broker, "invoicing", "orders.paid", 20, service)
        invoices = [invoice.body for invoice in broker.read("invoices")]
        assert invoices == [b"invoice for order %d" % order for order in range(20)]
    finally:
        broker.drop("invoices")
