"""The example of a service, with a broker and a database."""

import os
import signal
import subprocess
import sys

import pytest
import sqlalchemy as sa

from idempotent import Message
from idempotent.testing.adapter_contract import until
from tests.project.house import ROOT
from tests.support.services import own_database


@pytest.fixture
def database(postgres_url):
    """A database of the example's own, since it makes tables by their usual names."""
    with own_database(postgres_url, "faststream") as url:
        yield url


@pytest.mark.slow
def test_the_example_books_each_order_once_and_stops_when_told(rabbit, database):
    for queue in ("orders", "orders.dead", "receipts"):
        rabbit.delete(queue)
    service = subprocess.Popen(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "faststream_service.py")],
        env={**os.environ, "RABBITMQ_URL": rabbit.url, "DATABASE_URL": database},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: (rabbit.exists("orders") and rabbit.consumers("orders")) or service.poll(), "a start")
        order = Message("orders", b'{"number": "1", "cents": 1999}', id="o-1")
        rabbit.send(order, order, Message("orders", b'{"number": "2"}', id="o-2"))
        receipts = until(
            lambda: found if len(found := rabbit.look("receipts")) == 2 else None, "two receipts"
        )
        until(lambda: rabbit.depth("orders.dead") == 1, "a dead letter")
        service.send_signal(signal.SIGINT)
        printed, errors = service.communicate(timeout=150)
    finally:
        service.kill()
        service.communicate()
        for queue in ("orders", "orders.dead", "receipts"):
            rabbit.delete(queue)
    assert service.returncode == 0, errors
    assert printed.count("booked 1999 cents for 1\n") == printed.count("booked") == 1
    assert len({(each.id, each.body) for each in receipts}) == 1
    engine = sa.create_engine(database)
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM bookings")) == 1
    engine.dispose()
