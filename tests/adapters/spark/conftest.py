import secrets

import pytest

from idempotent.adapters.spark import StoreConfig
from idempotent.adapters.spark.tasks import ledgers
from tests.adapters.spark.support import migrated, sessions
from tests.adapters.spark.support.effects import Effects
from tests.adapters.spark.support.frames import numbered


@pytest.fixture(scope="session")
def spark():
    session = sessions.classic(**sessions.QUICK)
    yield session
    session.stop()


@pytest.fixture
def frame(spark):
    return numbered(spark)


@pytest.fixture
def effects(tmp_path):
    return Effects(str(tmp_path / "effects"))


@pytest.fixture
def in_this_process():
    """What wrappers keep of stores when they are called without Spark is closed afterwards."""
    yield
    while ledgers._ledgers:
        ledgers._ledgers.popitem()[1].close()


@pytest.fixture(params=[pytest.param("mysql", marks=pytest.mark.slow), "redis"])
def store(request):
    """An empty store of runs, in Redis and in MySQL.

    At a desk Redis alone: the ledger's contract has every store, and other tests here run Spark over SQLite and MySQL.
    """
    return request.getfixturevalue(f"{request.param}_store")


@pytest.fixture
def sqlite_store(tmp_path):
    return StoreConfig(migrated.sqlite_url(tmp_path / "runs.db"))


@pytest.fixture
def redis_store(redis_url):
    return StoreConfig(redis_url, prefix=f"t{secrets.token_hex(6)}:")


@pytest.fixture
def mysql_store(mysql_url):
    return StoreConfig(mysql_url, table=migrated.empty_table(mysql_url))
