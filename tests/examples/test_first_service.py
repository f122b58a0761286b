"""docs/first-service.md, as it stands there: its program and its commands, on PostgreSQL and RabbitMQ."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.project.house import ROOT
from tests.support.tables import new_name

PAGE = (ROOT / "docs" / "first-service.md").read_text()


@pytest.fixture
def database(postgres_url):
    """The URL of an empty database."""
    url, name = sa.make_url(postgres_url), new_name()
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
        yield url.set(database=name, drivername="postgresql+psycopg")
        connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


@pytest.mark.slow
def test_the_first_service_books_each_order_once(database, rabbitmq_url, tmp_path):
    rabbit = Rabbit(rabbitmq_url)
    queue = rabbit.declare(rabbit.name())
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "shop.py").write_text(program.replace("orders.paid", queue))
    environ = {
        **os.environ,
        "DATABASE_URL": database.render_as_string(hide_password=False),
        "BROKER_URL": rabbit.url,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "200",  # a table of 80 columns cuts the keys
    }
    migrate, create, send, run, show, examine = re.findall(
        r"^\$ ((?:idempotent|python).*)", PAGE, flags=re.MULTILINE
    )

    def typed(command):
        done = subprocess.run(
            ["bash", "-c", command],
            check=False,
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode in (0, 1), done.stderr  # 1: doctor advises
        return done.stdout

    for command in (migrate, create, send):
        typed(command)
    service = subprocess.Popen(["bash", "-c", f"exec {run}"], cwd=tmp_path, env=environ)
    engine = sa.create_engine(database)
    try:
        until(lambda: rabbit.depth(queue) == 0 and len(booked(engine)) == 3, "three bookings")
        typed(send)
        service.send_signal(signal.SIGTERM)
        assert service.wait(150) == 0
        assert booked(engine) == ["7", "8", "9"]
        assert f"{queue}:booking:7" in typed(show)
        assert "the server answers" in typed(examine)
    finally:
        service.kill()
        service.wait()
        engine.dispose()
        rabbit.clean_up()


def booked(engine):
    with engine.connect() as connection:
        return sorted(connection.scalars(sa.text('SELECT "order" FROM bookings')).all())
