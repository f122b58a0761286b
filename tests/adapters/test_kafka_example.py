"""The example of a service, with a broker."""

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import sqlalchemy as sa

from tests.adapters.kafka_broker import Broker

EXAMPLE = Path(__file__).parents[2] / "examples" / "kafka_service.py"


def test_the_example_ships_each_order_once_and_stops_when_told(kafka_bootstrap, tmp_path):
    broker = Broker(kafka_bootstrap)
    broker.make("orders.paid")
    ids = [secrets.token_hex(4) for _ in range(10)]
    for id_ in [*ids, *ids]:
        broker.send("orders.paid", b'{"order": "%s"}' % id_.encode(), **{"x-idempotent-key": id_})
    broker.flush()
    service = subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        cwd=tmp_path,
        env={**os.environ, "KAFKA_BOOTSTRAP": kafka_bootstrap},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 30
        while broker.committed("shipping", "orders.paid") != 20:
            assert service.poll() is None, service.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        service.send_signal(signal.SIGTERM)
        out, err = service.communicate(timeout=30)
    finally:
        service.kill()
        service.wait()
        broker.drop("orders.paid")
    assert service.returncode == 0, err
    assert out.count("shipped order") == 10
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
    with engine.connect() as connection:
        parcels = connection.scalars(sa.text('SELECT "order" FROM parcels')).all()
    engine.dispose()
    assert sorted(parcels) == sorted(ids)
