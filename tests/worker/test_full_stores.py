"""A store that answers and takes no keys: the worker is not ready, and with `fail_fast` it does not start."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from redis import Redis

from idempotent import Registry, Worker
from idempotent.adapters import MemoryAdapter, MemoryBroker
from idempotent.checkers import OffsetChecker, RedisChecker, SqlChecker, TransactionalSqlChecker
from idempotent.checkers.memory import MemoryChecker
from idempotent.claims import ClaimRequest, Decision
from idempotent.errors import StoreBusyError, StoreError
from idempotent.schema import failures_name
from idempotent.stores.redis.faults import COMMANDS
from idempotent.worker.store_watch import StoreWatch
from tests.support.logs import events, logged
from tests.support.privileges import user_of_keys, user_of_tables
from tests.support.services import PrivateRedis
from tests.support.stores import Store, open_store
from tests.worker.running import SUBJECT, Running, publish, until


@pytest.fixture
def server(private_redis: Callable[[], PrivateRedis]) -> Iterator[Redis]:
    with Redis.from_url(private_redis().url) as client:
        yield client


@pytest.fixture
def checker(server: Redis) -> Iterator[RedisChecker]:
    made = RedisChecker(server)
    yield made
    made.close()


def fill(server: Redis) -> None:
    server.config_set("maxmemory", 1)


def empty(server: Redis) -> None:
    server.config_set("maxmemory", 0)


def test_a_full_redis_stops_a_worker_that_fails_fast(
    server: Redis, checker: RedisChecker, registry: Registry, broker: MemoryBroker
) -> None:
    registry.consumer(SUBJECT, checker=checker)(lambda _: None)
    fill(server)
    with pytest.raises(StoreError, match="maxmemory"):
        Worker(registry, MemoryAdapter(broker), fail_fast=True).run()


def test_readiness_knows_of_a_redis_that_is_full_for_a_while(
    server: Redis,
    checker: RedisChecker,
    registry: Registry,
    broker: MemoryBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "health"
    registry.consumer(SUBJECT, checker=checker)(lambda _: None)
    running = Running(Worker(registry, MemoryAdapter(broker), gc_interval_s=None, health_file=path))
    until(lambda: path.exists() and path.read_text() == "ready\n")
    fill(server)
    publish(broker, "a")
    until(lambda: path.read_text() == "store\n")
    empty(server)
    until(lambda: path.read_text() == "ready\n")
    running.worker.stop()
    running.join()
    said = [event for event in events(caplog) if event.startswith("store_u")]
    assert said == ["store_unusable", "store_usable_again"]
    (why,) = [record.error for record in logged(caplog, "store_unusable")]
    assert "maxmemory" in why


@pytest.mark.parametrize("kind", [SqlChecker, TransactionalSqlChecker])
def test_an_added_column_without_a_default_is_found_before_the_first_message(
    altered_sql_store: Store,
    kind: Callable[..., SqlChecker],
    registry: Registry,
    broker: MemoryBroker,
) -> None:
    """It has no default, so that no key can be inserted."""
    table = altered_sql_store.table
    with altered_sql_store.admin_engine.begin() as connection:
        default = (
            " DEFAULT NULL CHECK (region IS NOT NULL)" if altered_sql_store.kind == "sqlite" else " NOT NULL"
        )
        connection.execute(sa.text(f"ALTER TABLE {table} ADD COLUMN region VARCHAR(9){default}"))
    checker = kind(altered_sql_store.consumer_engine(), table=table)
    registry.consumer(SUBJECT, checker=checker)(lambda _: None)
    checker.ping()
    with pytest.raises(StoreError, match="region"):
        Worker(registry, MemoryAdapter(broker), fail_fast=True).run()
    checker.close()


def test_the_trial_leaves_no_key(sql_store: Store) -> None:
    for kind in (SqlChecker, TransactionalSqlChecker, OffsetChecker):
        checker = kind(sql_store.consumer_engine(), table=sql_store.table)
        with StoreWatch([checker], fail_fast=True) as watch:
            assert watch.ready
        checker.close()
    with sql_store.admin_engine.connect() as connection:
        assert connection.scalar(sa.text(f"SELECT COUNT(*) FROM {sql_store.table}")) == 0


@contextmanager
def may_free_nothing(kind: str, request: pytest.FixtureRequest) -> Iterator[tuple[Any, Callable[[], int]]]:
    """A checker whose user may free no key, and what counts the keys in its store."""
    with contextmanager(open_store)(kind, request) as store:
        name = f"u_{secrets.token_hex(6)}"
        if kind == "redis":
            with (
                user_of_keys(store.url, name, store.table, COMMANDS.replace("+del ", "")) as url,
                Redis.from_url(store.url) as client,
                Redis.from_url(url) as user,
            ):
                keys = f"{store.table}*"
                yield RedisChecker(user, prefix=store.table), lambda: len(list(client.scan_iter(keys)))
        else:
            tables = [store.table, failures_name(store.table)]
            with user_of_tables(store.admin_engine, name, tables, "SELECT, INSERT, UPDATE") as url:
                count = sa.text(f"SELECT COUNT(*) FROM {store.table}")

                def counted() -> int:
                    with store.admin_engine.connect() as connection:
                        return int(connection.scalar(count))

                yield SqlChecker(url, table=store.table), counted


@pytest.mark.parametrize("kind", ["mysql", "postgres", "redis"])
def test_a_user_who_may_free_no_key_leaves_one_and_is_told_once(
    kind: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    with may_free_nothing(kind, request) as (checker, count):
        with StoreWatch([checker], fail_fast=True) as watch:
            for _ in range(3):
                watch.suspect(checker)
                until(lambda: not watch._suspects)
                until(lambda: watch._asked is None)
            assert watch.ready
        assert checker.protocol.unrecorded == 0
        assert not checker.protocol._keeper._held
        checker.close()
        assert count() == 1
    (said,) = logged(caplog, "trial_not_freed")
    assert "DELETE" in said.error or kind == "redis"
    assert not logged(caplog, "store_unusable")


def test_a_store_that_others_keep_busy_is_usable() -> None:
    class Busy(MemoryChecker):
        def _claim(self, request: ClaimRequest) -> Decision:
            raise StoreBusyError("a long transaction")

    with StoreWatch([Busy()], fail_fast=True) as watch:
        assert watch.ready
