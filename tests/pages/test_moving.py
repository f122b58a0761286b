"""docs/moving.md: after its commands, what was processed before is a duplicate, and all else runs."""

import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from idempotent import Message, Outcome, Registry
from idempotent.checkers import checker_from_url
from idempotent.migrations import upgrade
from tests.support.services.sql import own_database

PAGE = (Path(__file__).parents[2] / "docs" / "moving.md").read_text()
pytestmark = pytest.mark.slow


def commands(heading):
    """What a section shows behind `$ `, without the sections below it."""
    section = re.split(rf"^#+ {re.escape(heading)}$", PAGE, flags=re.MULTILINE)[1]
    section = re.split(r"^#+ ", section, maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^\$ (.+)$", section, re.MULTILINE)


def follow(heading, folder, **environ):
    found = commands(heading)
    assert found, f"{heading} shows no command"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command in found:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            check=False,
            cwd=folder,
            env={**os.environ, "PATH": path, **environ},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def write(url, *statements):
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def outcomes(url, *ids, **options):
    with closing(checker_from_url(url, **options)) as checker:
        consumer = Registry().consumer("orders.paid", group="billing", checker=checker)(lambda message: None)
        return [consumer.process(Message("orders.paid", id=each)).outcome for each in ids]


@pytest.fixture
def postgres(postgres_url):
    with own_database(postgres_url, "moving") as url:
        yield url


@pytest.fixture
def mariadb(mysql_url, tmp_path):
    """Its URL; beside it is the file that the page's commands read."""
    with own_database(mysql_url, "moving") as url:
        at = make_url(url)
        (tmp_path / "old.cnf").write_text(
            f"[client]\nhost={at.host}\nport={at.port}\nprotocol=tcp\nuser={at.username}\n"
            f"password={at.password or ''}\ndatabase={at.database}\n"
        )
        yield url


def libpq(url):
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


DELIVER = """
for number in ("1", "2", "2"):
    on_paid(Message("orders.paid", id=number))
engine.dispose()
"""
PROCESSED_7_AND_8_BEFORE = [Outcome.DUPLICATE, Outcome.DUPLICATE, Outcome.PROCESSED]


def test_a_table_by_hand_on_postgresql(postgres, tmp_path):
    write(
        postgres, "CREATE TABLE processed (id VARCHAR(50))", "INSERT INTO processed VALUES ('7'), ('a \"8\"')"
    )
    follow("Moving to this library", tmp_path, DATABASE_URL=postgres)
    follow("From a table by hand", tmp_path, DATABASE_URL=postgres, OLD_DATABASE=libpq(postgres))
    assert outcomes(postgres, "7", 'a "8"', "9") == PROCESSED_7_AND_8_BEFORE


def test_a_table_by_hand_on_mariadb(mariadb, tmp_path):
    write(mariadb, "CREATE TABLE processed (id BIGINT)", "INSERT INTO processed VALUES (7), (8)")
    follow("Moving to this library", tmp_path, DATABASE_URL=mariadb)
    follow("On MySQL and MariaDB", tmp_path, DATABASE_URL=mariadb)
    assert outcomes(mariadb, "7", 8, "9") == PROCESSED_7_AND_8_BEFORE


def test_the_new_version_beside_the_old_one(postgres):
    section = re.split(r"^### Without a stop$", PAGE, flags=re.MULTILINE)[1]
    program = re.search(r"^```python\n(.+?)^```$", section, re.MULTILINE | re.DOTALL)[1]
    assert "sqlite:///shop.db" in program
    program = program.replace("sqlite:///shop.db", postgres)
    upgrade(postgres)
    write(
        postgres,
        "CREATE TABLE processed (id VARCHAR(50) PRIMARY KEY)",
        "CREATE TABLE bookings (id VARCHAR(50))",
        "INSERT INTO processed VALUES ('1')",
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program + DELIVER], check=True, timeout=60)
    engine = create_engine(postgres, poolclass=NullPool)
    with engine.connect() as connection:
        assert connection.scalars(text("SELECT id FROM bookings")).all() == ["2"]


def test_keys_of_redis(redis_url, tmp_path):
    with Redis.from_url(redis_url) as client:
        client.mset({"processed:7": 1, "processed:8": 1, "other:9": 1})
        try:
            old = redis_url.replace("redis://:", "redis://default:")
            follow("From `SET NX` in Redis", tmp_path, REDIS_URL=redis_url, OLD_REDIS=old)
            assert outcomes(redis_url, "7", "8", "9") == PROCESSED_7_AND_8_BEFORE
        finally:
            client.delete("other:9", *client.keys("processed:*"), *client.keys("idempotent:*"))


def test_what_idemkit_has_processed(postgres, tmp_path):
    write(
        postgres,
        "CREATE TABLE payments (order_id BIGINT, paid_at TIMESTAMPTZ)",
        "INSERT INTO payments VALUES (7, now()), (8, now() - interval '13 days'), (9, now() - interval '15 days')",
    )
    follow("Moving to this library", tmp_path, DATABASE_URL=postgres)
    follow("From idemkit", tmp_path, DATABASE_URL=postgres, OLD_DATABASE=libpq(postgres))
    assert outcomes(postgres, "7", "8", "9") == PROCESSED_7_AND_8_BEFORE


def test_the_table_of_qmq(mariadb, tmp_path):
    write(
        mariadb,
        "CREATE TABLE deduplicate_tbl (id BIGINT AUTO_INCREMENT PRIMARY KEY, k VARCHAR(100) NOT NULL UNIQUE, "
        "update_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)",
        "INSERT INTO deduplicate_tbl (k) VALUES "
        "('orders.paid%billing%7'), ('orders.paid%billing%8'), ('orders.paid%shipping%9')",
    )
    follow("From QMQ", tmp_path, DATABASE_URL=mariadb)
    assert outcomes(mariadb, "7", "8", "9", table="billing_keys") == PROCESSED_7_AND_8_BEFORE
