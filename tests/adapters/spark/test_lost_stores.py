"""A store that fails, or is not the one it was, fails the task: it is never a verdict."""

import os
import signal
from pathlib import Path

import pytest
from redis import Redis

from idempotent.adapters.spark import IdempotentRun, StoreConfig, idempotent_foreach, idempotent_partitions
from idempotent.errors import ClaimsExpiredError, StoreReplacedError
from idempotent.migrations import upgrade
from tests.adapters.spark.support import migrated
from tests.adapters.spark.support.frames import ROWS


def begin(store, **options):
    return IdempotentRun.begin(store, consumer="orders", run_id="r1", **options)


def replace(store):
    """Another, empty store in its place."""
    file = Path(store.url.removeprefix("sqlite:///"))
    file.rename(file.with_suffix(".old"))
    migrated.sqlite_url(file)


@pytest.mark.slow
def test_a_file_that_was_replaced_under_live_workers_is_noticed(frame, sqlite_store):
    with begin(sqlite_store) as run:
        new = run.dedup(frame, key="k", unique=True)
        assert new.count() == ROWS
        replace(sqlite_store)
        with pytest.raises(Exception, match=r"StoreReplacedError.*does not know run 'r1'.*another store"):
            new.count()
        with pytest.raises(StoreReplacedError), run.publishing():
            pass


def test_what_was_done_in_another_store_is_not_done_in_this_one(frame, sqlite_store, effects):
    def handle(row):
        effects.add(row["k"])

    few = frame.where("v < 10").coalesce(1)
    with begin(sqlite_store) as run:
        replace(sqlite_store)
        with begin(sqlite_store) as other:
            few.foreachPartition(idempotent_foreach(other, key="k", handler=handle))
        with pytest.raises(Exception, match=r"StoreReplacedError.*does not know run 'r1'"):
            few.foreachPartition(idempotent_foreach(run, key="k", handler=handle))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "mysql"])
def test_a_store_that_dies_in_the_middle_fails_the_task(frame, kind, request):
    server = request.getfixturevalue({"redis": "private_redis", "mysql": "private_mariadb"}[kind])()
    pid = server.pid
    store = StoreConfig(server.url)
    if kind == "mysql":
        upgrade(store.url, table=store.table)

    def key(row):
        if row["v"] == 150:
            os.kill(pid, signal.SIGKILL)
        return row["k"]

    with begin(store) as run:
        only_new = idempotent_partitions(run, key=key, chunk=100)
        with pytest.raises(Exception, match=r"StoreUnavailableError"):
            frame.rdd.mapPartitions(only_new).count()


def test_a_run_that_took_longer_than_claims_live_is_not_committed(frame, sqlite_store):
    store = StoreConfig(sqlite_store.url, table=sqlite_store.table, retention_s=1)
    with begin(store, lease_s=0.1) as run:
        run.claim(run.dedup(frame, key="k", unique=True))
        row = run.ledger.store.newest("orders", "r1")
        while row.now_us < row.began_at_us + 1_000_000:
            row = run.ledger.store.newest("orders", "r1")
        with pytest.raises(ClaimsExpiredError, match="abort it and begin it again"), run.publishing():
            pytest.fail("published what another run may publish too")
        assert not run.is_prepared


@pytest.mark.slow
def test_a_redis_that_was_emptied_is_noticed_by_executors_and_by_the_driver(frame, private_redis):
    server = private_redis()
    with begin(StoreConfig(server.url)) as run, Redis.from_url(server.url) as client:
        new = run.dedup(frame, key="k", unique=True)
        run.claim(new)
        client.flushall()
        with pytest.raises(Exception, match=r"StoreReplacedError"):
            new.count()
        with pytest.raises(StoreReplacedError), run.publishing():
            pytest.fail("published")


def test_a_redis_that_evicted_claims_commits_nothing(frame, private_redis):
    server = private_redis()
    with begin(StoreConfig(server.url)) as run, Redis.from_url(server.url) as client:
        run.claim(run.dedup(frame, key="k", unique=True))
        client.config_set("maxmemory-policy", "volatile-random")  # claims expire, an open run does not
        client.config_set("maxmemory", client.info("memory")["used_memory"] - 20_000)
        client.set("one more", "x" * 1000)
        assert client.info("stats")["evicted_keys"] > 0
        client.config_set("maxmemory", 0)
        with pytest.raises(ClaimsExpiredError, match="evict"), run.publishing():
            pytest.fail("published")
