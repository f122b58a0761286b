"""Only databases and drivers that the tests run on are accepted; a refusal names the right URL."""

from __future__ import annotations

import sys

import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from idempotent.checkers import OffsetChecker, SqlChecker, TransactionalSqlChecker, checker_from_url
from idempotent.errors import ConfigurationError, MissingExtraError
from idempotent.migrations import upgrade

CHECKERS = [SqlChecker, TransactionalSqlChecker, OffsetChecker]
WRONG = {
    "postgresql+psycopg2://me:secret@h/db": "postgresql+psycopg://me:***@h/db",
    "postgresql+asyncpg://me:secret@h/db": "postgresql+psycopg://me:***@h/db",
    "postgresql+pg8000://me:secret@h/db?sslpassword=secret": "postgresql+psycopg://me:***@h/db?sslpassword=***",
    "mysql://me:secret@h/db": "mysql+pymysql://me:***@h/db",
    "mysql+aiomysql://me:secret@h/db": "mysql+pymysql://me:***@h/db",
    "mariadb+mysqlconnector://me:secret@h/db": "mariadb+pymysql://me:***@h/db",
    "sqlite+aiosqlite:///app.db": "sqlite:///app.db",
}


# What takes asyncio drivers names the URL of one.
ASYNC = {
    "postgresql+asyncpg://me:secret@h/db": "postgresql+psycopg_async://me:***@h/db",
    "mysql+aiomysql://me:secret@h/db": "mysql+asyncmy://me:***@h/db",
    "mariadb+aiomysql://me:secret@h/db": "mariadb+asyncmy://me:***@h/db",
}
IN_TRANSACTIONS = [TransactionalSqlChecker, OffsetChecker]


@pytest.mark.parametrize("make", [*CHECKERS, checker_from_url, upgrade])
@pytest.mark.parametrize("url", WRONG)
def test_another_driver_is_refused_and_the_right_url_named(make, url):
    right = ASYNC.get(url, WRONG[url]) if make in (*IN_TRANSACTIONS, upgrade) else WRONG[url]
    with pytest.raises(ConfigurationError) as refused:
        make(url)
    assert f"like {right}" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("make", CHECKERS)
@pytest.mark.parametrize("wrap", [lambda engine: engine, sessionmaker])
def test_an_engine_of_another_driver_is_refused(make, wrap):
    engine = wrap(sa.create_engine("mysql+mysqldb://me@h/db", module=pymysql))
    if make is SqlChecker and isinstance(engine, sessionmaker):
        return
    with pytest.raises(ConfigurationError, match=r"begin the URL with mysql\+pymysql://"):
        make(engine)


@pytest.mark.parametrize("target", ["postgresql+psycopg_async://h/db", "mysql+asyncmy://h/db"])
@pytest.mark.parametrize("wrap", [str, create_async_engine])
def test_leased_checkers_refuse_an_async_engine_and_name_the_one_to_give(target, wrap):
    with pytest.raises(
        ConfigurationError, match=r"leased checkers serve async handlers .* create_engine\(url\)"
    ):
        SqlChecker(wrap(target))


@pytest.mark.parametrize("make", IN_TRANSACTIONS)
@pytest.mark.parametrize("url", [*ASYNC, "sqlite+aiosqlite:///app.db"])
def test_other_asyncio_drivers_are_refused_with_the_reason(make, url):
    driver = sa.make_url(url).get_driver_name()
    with pytest.raises(ConfigurationError, match=rf"not supported for \w+ \(.*{driver}") as refused:
        make(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("make", IN_TRANSACTIONS)
def test_an_async_engine_of_another_driver_is_refused(make):
    engine = create_async_engine("mysql+aiomysql://me:secret@h/db", module=pymysql)
    with pytest.raises(ConfigurationError, match=r"begin the URL with mysql\+asyncmy://"):
        make(engine)


@pytest.mark.parametrize("make", IN_TRANSACTIONS)
@pytest.mark.parametrize(
    "target", ["postgresql+psycopg_async://h/db", "mysql+asyncmy://h/db", "mariadb+asyncmy://h/db"]
)
@pytest.mark.parametrize(
    "wrap", [str, sa.make_url, create_async_engine, lambda url: async_sessionmaker(create_async_engine(url))]
)
def test_checkers_in_transactions_take_asyncio_drivers(make, target, wrap):
    checker = make(wrap(target))
    assert checker.is_async
    assert checker.store.engine.url.drivername == target.partition(":")[0]
    checker.close()


def test_a_synchronous_checker_is_not_async():
    checker = TransactionalSqlChecker("postgresql+psycopg://h/db")
    assert not checker.is_async
    with pytest.raises(ConfigurationError, match="synchronous engine"):
        _ = checker.awaiting
    checker.close()


@pytest.mark.parametrize("missing", ["greenlet", "asyncmy"])
@pytest.mark.parametrize("wrap", [str, create_async_engine])
def test_a_missing_library_is_named_with_the_extra_that_has_it(monkeypatch, missing, wrap):
    target = wrap("mysql+asyncmy://h/db")
    if missing == "asyncmy" and wrap is not str:
        return  # the application's own create_async_engine has failed before
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=rf"{missing} is not installed.*\[mysql-async\]"):
        TransactionalSqlChecker(target)


@pytest.mark.parametrize("make", [*CHECKERS, checker_from_url, upgrade])
@pytest.mark.parametrize(
    "url",
    [
        "mysql+pymysql//me:secret@h/db",
        "mysql+pymysql:/me:secret@h/db",
        "mysql+pymysql://h:port/db?password=secret",
        "oracle://me:secret@h/db",
        "nonsense://me:secret@h/db",
        "postgresql+psycopg://me:secret@h:port/db",
        "postgresql+psycopg://me:not@secret@h/db",
        "sqlite://me:not@secret@h/app.db",
    ],
)
def test_an_invalid_url_is_not_repeated(make, url):
    with pytest.raises(ConfigurationError) as refused:
        make(url)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    "url",
    ["sqlite:///app.db", "sqlite+pysqlite:///app.db", "mariadb+pymysql://h/db", "postgresql+psycopg://h/db"],
)
def test_each_name_of_a_supported_driver_is_accepted(url):
    checker = SqlChecker(url)
    checker.close()


@pytest.mark.parametrize("make", [*CHECKERS, checker_from_url, upgrade])
@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///app.db?colour=red",
        "mysql+pymysql://h/db?charset=utf8mb4&colour=red",
        "postgresql+psycopg://h/db?connect_timeout=3&colour=red",
        "mysql+pymysql://h/db?colour=red&uri=true",
    ],
)
def test_an_option_that_the_driver_does_not_know_is_refused(make, url):
    with pytest.raises(ConfigurationError, match=r"'colour', which (pysqlite|pymysql|psycopg) does not know"):
        make(url)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///app.db?timeout=30&check_same_thread=false",
        "sqlite:///file:app.db?mode=rw&uri=true",
        "mysql+pymysql://h/db?charset=utf8mb4&ssl_ca=/ca.pem&ssl_check_hostname=false&read_timeout=3",
        "mysql+pymysql://h/db?ssl_disabled=true&unix_socket=/run/mysqld.sock",
        "postgresql+psycopg://h/db?sslmode=require&application_name=a&options=-csearch_path%3Dapp",
        "postgresql+psycopg://h/db?host=one:5432&host=two:5432&target_session_attrs=read-write",
    ],
)
def test_the_options_of_drivers_and_of_sqlalchemy_are_accepted(url):
    SqlChecker(url).close()


@pytest.mark.parametrize("make", [*CHECKERS, upgrade])
def test_what_is_no_engine_is_refused_with_what_to_give(make):
    engine = sa.create_engine("sqlite:///app.db")
    for other in (Session(engine), scoped_session(sessionmaker(engine)), 7, None):
        with pytest.raises(ConfigurationError, match=rf"an engine, a URL .* not a {type(other).__name__}"):
            make(other)
