"""`ping`: whether a store can take keys, asked before the first message."""

from collections.abc import Callable
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from redis import Redis

from idempotent.admin import Level
from idempotent.checkers import (
    MemoryChecker,
    OffsetChecker,
    RedisChecker,
    SqlChecker,
    TransactionalSqlChecker,
)
from idempotent.errors import SchemaError, StoreError, StoreUnavailableError
from idempotent.schema import DEFAULT_TABLE
from tests.support.services import PrivateRedis
from tests.support.stores import SHARED, Store, open_store

CHECKERS = [SqlChecker, TransactionalSqlChecker, OffsetChecker]


@pytest.mark.parametrize("kind", CHECKERS)
def test_a_store_as_it_should_be_answers(sql_store: Store, kind: Callable[..., SqlChecker]) -> None:
    checker = kind(sql_store.consumer_engine(), table=sql_store.table)
    checker.ping()
    checker.close()


@pytest.mark.parametrize("kind", CHECKERS)
def test_a_missing_table_is_an_error_that_says_what_to_type(
    sql_store: Store, kind: Callable[..., SqlChecker]
) -> None:
    checker = kind(sql_store.consumer_engine(), table="nothing_here")
    with pytest.raises(SchemaError, match="idempotent migrate upgrade"):
        checker.ping()
    checker.close()


def test_a_missing_column_is_an_error(altered_sql_store: Store) -> None:
    table = altered_sql_store.table
    with altered_sql_store.admin_engine.begin() as connection:
        connection.execute(sa.text(f"ALTER TABLE {table} DROP COLUMN fingerprint"))
    checker = altered_sql_store.leased()
    with pytest.raises(SchemaError, match="fingerprint"):
        checker.ping()


@pytest.mark.parametrize("kind", CHECKERS)
def test_a_failures_table_that_cannot_be_used_is_an_error(
    altered_sql_store: Store, kind: Callable[..., SqlChecker]
) -> None:
    table = altered_sql_store.table
    with altered_sql_store.admin_engine.begin() as connection:
        connection.execute(sa.text(f"ALTER TABLE {table}_failures DROP COLUMN last_error"))
    checker = kind(altered_sql_store.consumer_engine(), table=table)
    with pytest.raises(SchemaError, match="last_error"):
        checker.ping()
    checker.close()


def test_redis_answers(redis_url: str) -> None:
    checker = RedisChecker(redis_url)
    checker.ping()
    checker.close()


def test_the_rights_of_a_consumer_are_enough(request: pytest.FixtureRequest) -> None:
    for kind in SHARED:
        with contextmanager(open_store)(kind, request, least=True) as store:
            store.leased().ping()


@pytest.mark.parametrize(
    "url",
    ["mysql+pymysql://nobody:wrong@127.0.0.1:1/shop", "postgresql+psycopg://nobody:wrong@127.0.0.1:1/shop"],
)
def test_a_database_that_is_not_there_is_unavailable(url: str) -> None:
    checker = SqlChecker(url, table=DEFAULT_TABLE)
    with pytest.raises(StoreUnavailableError):
        checker.ping()
    checker.close()


def test_a_redis_that_is_not_there_is_unavailable() -> None:
    checker = RedisChecker("redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailableError):
        checker.ping()
    checker.close()


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_a_wrong_password_is_an_error(request: pytest.FixtureRequest, kind: str) -> None:
    url = sa.make_url(request.getfixturevalue(f"{kind}_url")).set(password="wrong", username="stranger")
    checker = SqlChecker(url)
    with pytest.raises(StoreError):
        checker.ping()
    checker.close()


def test_a_checker_without_a_store_has_nothing_to_ask() -> None:
    MemoryChecker().ping()


READ_ONLY = {
    "mysql": {"init_command": "SET SESSION TRANSACTION READ ONLY"},
    "postgres": {"options": "-cdefault_transaction_read_only=on"},
}


@pytest.mark.parametrize("kind", CHECKERS)
def test_a_database_that_takes_no_writes_is_an_error(
    sql_store: Store, kind: Callable[..., SqlChecker]
) -> None:
    if sql_store.kind == "sqlite":
        pytest.skip("a question that writes would wait for each transaction that does")
    url = sa.make_url(sql_store.url).update_query_dict(READ_ONLY[sql_store.kind])
    checker = kind(url, table=sql_store.table)
    with pytest.raises(StoreError, match=r"(?i)read[ -]only"):
        checker.ping()
    assert any(finding.level is Level.ERROR for finding in checker.findings())
    checker.close()


def test_a_replica_of_redis_is_an_error(private_redis: Callable[[], PrivateRedis]) -> None:
    primary, replica = private_redis(), private_redis()
    with Redis.from_url(replica.url) as client:
        client.replicaof("127.0.0.1", str(primary.port))
    checker = RedisChecker(replica.url)
    with pytest.raises(StoreError, match="it is a replica"):
        checker.ping()
    checker.close()
