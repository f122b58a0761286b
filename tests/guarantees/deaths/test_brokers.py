"""Real brokers, real deaths: eight handlers at once, and one of them kills the process."""

import os
import signal
import time

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message, Registry, Worker
from idempotent.checkers.urls import checker_from_url
from tests.adapters.conformance_child import GROUP, SOON, adapter_at
from tests.adapters.places import BROKERS, open_place
from tests.support.forked import Forked

MAX_DEATHS = 5
INNOCENTS = [f"m-{number}" for number in range(12)]


def consume(url: str, subject: str, database: str, table: str, effects: str) -> None:
    registry = Registry()
    checker = checker_from_url(f"transactional+{database}", table=table)

    @registry.consumer(subject, group=GROUP, checker=checker, max_attempts=1, backoff=SOON)
    def handle(message: Message, session: Session) -> None:
        session.execute(sa.text(f"INSERT INTO {effects} VALUES (:id)"), {"id": message.id})
        time.sleep(0.5)
        if message.id == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.5)

    Worker(registry, adapter_at(url, batched=False), concurrency=8, gc_interval_s=None).run()


@pytest.mark.slow
@pytest.mark.parametrize("broker", BROKERS)
def test_only_the_message_that_kills_its_process_is_a_dead_letter(broker, request, sql_store, tmp_path):
    if sql_store.kind == "sqlite":
        pytest.skip("one writer: its handlers run one at a time")
    deaths = 0
    for place in open_place(broker, request):
        subject = place.subject()
        place.send(*(Message(subject, b"x", id=name) for name in [*INNOCENTS[:3], "deadly", *INNOCENTS[3:]]))
        worker = sql_store.consumer_url or sql_store.url, sql_store.table, sql_store.effects.name
        until = time.monotonic() + 300
        child = None
        while not (place.dead_letters(subject) and len(sql_store.booked()) == len(INNOCENTS)):
            assert time.monotonic() < until, child and child.err
            if child is None or child.poll() is not None:
                deaths += child is not None
                child = Forked(consume, place.url, subject, *worker, folder=tmp_path)
            time.sleep(0.3)
        child.send_signal(signal.SIGTERM)
        assert child.wait(150) == 0, child.err
        assert [letter.id for letter in place.dead_letters(subject)] == ["deadly"]
        assert place.left(subject) == 0
    assert sql_store.booked() == dict.fromkeys(INNOCENTS, 1)
    assert deaths <= MAX_DEATHS + 1
