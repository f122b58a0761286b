"""A pause over real brokers, for real processes, of which one is killed while its consumer is paused."""

import secrets
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlalchemy as sa

from idempotent.checkers import SqlChecker
from idempotent.checkers.pauses import Pauses
from idempotent.migrations import upgrade
from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.outbox.brokers import activemq, kafka, rabbitmq
from tests.worker.pauses.child import RUNS, SLOW_S

pytestmark = pytest.mark.slow

WAIT_S = 120.0
# Longer than a message of the slow consumer takes, and than the stores are asked.
QUIET_S = 8.0
NUMBER = 60


def until(condition) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)


class Shop:
    """A broker, a store, and workers that are processes."""

    def __init__(self, place, database: str, folder: Path, opened: ExitStack) -> None:
        self.place, self.database, self._folder, self._opened = place, database, folder, opened
        name = secrets.token_hex(6)
        self.slow, self.fast = f"slow-{name}", f"fast-{name}"
        place.make(self.slow, self.fast)
        self.name = f"{self.slow}:default"
        self.checker = SqlChecker(database)
        opened.callback(self.checker.close)
        self._engine = sa.create_engine(database)
        opened.callback(self._engine.dispose)
        RUNS.create(self._engine, checkfirst=True)

    def start(self) -> tuple[subprocess.Popen[bytes], Path]:
        health = self._folder / secrets.token_hex(4)
        words = (self.place.url, self.database, self.slow, self.fast, str(health))
        process = subprocess.Popen([sys.executable, "-m", "tests.worker.pauses.child", *words])
        self._opened.callback(process.wait)
        self._opened.callback(process.kill)
        until(lambda: health.exists() and health.read_text().startswith("ready"))
        return process, health

    def ran(self, subject: str) -> Counter[str]:
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(RUNS.c.id).where(RUNS.c.subject == subject))
            return Counter(row[0] for row in rows)

    def attempts(self) -> int:
        with self._engine.connect() as connection:
            counted = sa.text("SELECT count(*) FROM deduplicate_tbl_failures WHERE k LIKE :head")
            return connection.execute(counted, {"head": f"{self.slow}%"}).scalar_one()


@pytest.fixture(params=[rabbitmq, kafka, activemq], ids=lambda make: make.__name__)
def shop(request, postgres_url, tmp_path):
    upgrade(postgres_url)
    with request.param(request) as place, ExitStack() as opened:
        yield Shop(place, postgres_url, tmp_path, opened)


def test_what_waits_meanwhile_runs_once_after_the_pause(shop):
    first, health = shop.start()
    shop.place.send(shop.slow, [str(number) for number in range(NUMBER)])
    until(lambda: len(shop.ran(shop.slow)) >= 3)
    assert Pauses(shop.checker).pause(shop.name, by="anna", note="OPS-12")[1]
    until(lambda: health.read_text() == f"ready\npaused: {shop.name}\n")
    time.sleep(5 * SLOW_S)
    ran = shop.ran(shop.slow)
    assert len(ran) < NUMBER

    shop.place.send(shop.fast, [str(number) for number in range(NUMBER)])
    until(lambda: len(shop.ran(shop.fast)) == NUMBER)
    time.sleep(QUIET_S)
    assert shop.ran(shop.slow) == ran, "nothing runs while it is paused"
    if shop.place.url.startswith("amqp"):
        assert Rabbit(shop.place.url).depth(shop.slow) == NUMBER - len(ran), "nothing is held without an end"

    first.kill()
    second, health = shop.start()
    until(lambda: health.read_text() == f"ready\npaused: {shop.name}\n")
    time.sleep(QUIET_S)
    assert shop.ran(shop.slow) == ran, "a worker that starts while it is paused runs nothing"

    assert Pauses(shop.checker).resume(shop.name)
    until(lambda: len(shop.ran(shop.slow)) == NUMBER)
    until(lambda: health.read_text() == "ready\n")
    second.terminate()
    assert second.wait(WAIT_S) == 0
    for subject in (shop.slow, shop.fast):
        assert set(shop.ran(subject).values()) == {1}, "each of them once"
    assert shop.attempts() == 0
