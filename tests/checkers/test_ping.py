"""`ping`: whether a store can take keys, asked before the first message."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from idempotent.checkers import (
    MemoryChecker,
    OffsetChecker,
    RedisChecker,
    SqlChecker,
    TransactionalSqlChecker,
)
from idempotent.errors import SchemaError, StoreError, StoreUnavailableError
from idempotent.schema import DEFAULT_TABLE
from tests.support.stores import Store

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
