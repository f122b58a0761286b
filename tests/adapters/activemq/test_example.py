"""examples/activemq_service.py ships every order once, and stops when it is told to."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters.activemq.stomp_client import client
from tests.support.services import PrivateActiveMq

EXAMPLE = Path(__file__).parents[3] / "examples" / "activemq_service.py"


@pytest.mark.slow
def test_every_order_is_shipped_once(spare, tmp_path):
    server = spare(PrivateActiveMq)
    with client(server.url) as producer:
        for order in ("1", "2", "1", "2", "3"):  # it sends again when it is not sure
            body = f'{{"order": "{order}"}}'.encode()
            producer.publish("/queue/orders.paid", body, {"x-idempotent-key": f"order-{order}"})
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        cwd=tmp_path,
        env={**os.environ, "STOMP_URL": server.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as service:
        assert service.stdout is not None
        shipped = {service.stdout.readline() for _ in range(3)}
        service.send_signal(signal.SIGTERM)
        _, errors = service.communicate(timeout=150)
    assert (service.returncode, errors) == (0, "")
    assert shipped == {"shipped order 1\n", "shipped order 2\n", "shipped order 3\n"}
    with sqlite3.connect(tmp_path / "orders.db") as database:
        rows = database.execute('SELECT "order" FROM parcels ORDER BY 1').fetchall()
    database.close()
    assert rows == [("1",), ("2",), ("3",)]
