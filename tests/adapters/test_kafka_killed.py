"""Processes that consume from Kafka are killed, and each effect happens once all the same."""

import random
import secrets
import signal
import time

import sqlalchemy as sa

from idempotent.migrations import upgrade
from tests.adapters.kafka_broker import Broker
from tests.adapters.kafka_child import EFFECTS, GROUP, consume
from tests.forked import Forked

MESSAGES = 2000


def test_processes_killed_at_any_time_repeat_no_effect_and_lose_none(kafka_bootstrap, tmp_path):
    broker, topic = Broker(kafka_bootstrap), f"orders-{secrets.token_hex(6)}"
    broker.make(topic, 2)
    for number in range(MESSAGES):
        broker.send(topic, str(number).encode())
    broker.flush()
    database = f"sqlite:///{tmp_path / 'shop.db'}"
    upgrade(database)
    engine = sa.create_engine(database)
    EFFECTS.create(engine)

    def effects():
        with engine.connect() as connection:
            return connection.scalars(sa.select(EFFECTS.c.id)).all()

    kills, deadline = 0, time.monotonic() + 90
    while len(effects()) < MESSAGES:
        assert time.monotonic() < deadline
        before = len(effects())
        child = Forked(consume, kafka_bootstrap, topic, database, folder=tmp_path)
        try:
            while len(effects()) == before and time.monotonic() < deadline:
                assert child.poll() is None, child.err
                time.sleep(0.02)
            time.sleep(random.uniform(0, 0.3))
            child.send_signal(signal.SIGKILL)
            kills += 1
        finally:
            child.close()
    assert kills > 1
    # What the last one had not committed is all duplicates now, and then the group is at the end.
    child = Forked(consume, kafka_bootstrap, topic, database, folder=tmp_path)
    try:
        while sum(broker.committed(GROUP, topic, number) or 0 for number in range(2)) < MESSAGES:
            assert child.poll() is None, child.err
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        child.close()
    ids = effects()
    engine.dispose()
    assert len(ids) == len(set(ids)) == MESSAGES
