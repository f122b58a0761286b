"""A store that loses acknowledged writes: no checker can help, so the documentation says that effects repeat."""

from __future__ import annotations

from pathlib import Path

from idempotent import Outcome
from tests.guarantees.crash.child import Job, effects
from tests.guarantees.crash.scene import deliver
from tests.support.stores import Store


def test_redis_that_forgets_lets_the_effect_repeat(private_redis, tmp_path: Path):
    server = private_redis()
    store = Store("redis", server.url)
    job = Job("redis", server.url, store.table, str(tmp_path / "ledger"))
    with store.opened:
        consumer = job.consumer(store)
        assert deliver(consumer).outcome is Outcome.PROCESSED
        assert deliver(consumer).outcome is Outcome.DUPLICATE
        server.kill()
        assert deliver(consumer).outcome is Outcome.UNAVAILABLE
        assert effects(job.ledger) == {"1": 1}
        server.restart()
        assert deliver(consumer).outcome is Outcome.PROCESSED, "nothing remembers it: see `idempotent doctor`"
        assert effects(job.ledger) == {"1": 2}


def test_redis_that_writes_everything_down_forgets_nothing(private_redis, tmp_path: Path):
    server = private_redis("--appendonly", "yes", "--appendfsync", "always")
    store = Store("redis", server.url)
    job = Job("redis", server.url, store.table, str(tmp_path / "ledger"))
    with store.opened:
        consumer = job.consumer(store)
        assert deliver(consumer).outcome is Outcome.PROCESSED
        server.kill()
        server.restart()
        assert deliver(consumer).outcome is Outcome.DUPLICATE
        assert effects(job.ledger) == {"1": 1}
