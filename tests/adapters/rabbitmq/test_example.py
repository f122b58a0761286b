"""The example of a service, with a broker."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from idempotent import Message
from idempotent.testing.adapter_contract import until

EXAMPLE = Path(__file__).parents[3] / "examples" / "rabbitmq_service.py"


@pytest.mark.slow
def test_the_example_books_each_payment_once_and_stops_when_told(rabbit, tmp_path):
    queue = rabbit.declare("payments")
    payment = Message(queue, b'{"account": "alice", "cents": 1999}', id="p-1")
    rabbit.send(payment, payment, Message(queue, b'{"account": "bob", "cents": 5}', id="p-2"))
    service = subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        cwd=tmp_path,
        env={**os.environ, "RABBITMQ_URL": rabbit.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = [service.stdout.readline() for _ in range(2)]
        until(lambda: rabbit.depth(queue) == 0, "an empty queue")
        service.send_signal(signal.SIGTERM)
        rest, errors = service.communicate(timeout=150)
    finally:
        service.kill()
        service.communicate()
    assert service.returncode == 0, errors
    assert sorted(lines) == ["booked 1999 cents for alice\n", "booked 5 cents for bob\n"]
    assert "WorkerSummary" in rest
    assert "booked" not in rest
    assert (
        rabbit.depth(queue) <= 1
    )  # a copy that came while the first ran is held, and given back at the stop
