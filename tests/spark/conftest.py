import secrets

import pytest

from idempotent.adapters.spark import StoreConfig
from idempotent.migrations import upgrade
from tests.spark import sessions


@pytest.fixture(scope="session")
def spark():
    session = sessions.classic()
    yield session
    session.stop()


@pytest.fixture(params=["sqlite", "mysql", "redis"])
def store(request, tmp_path):
    """An empty store of runs: one on a file, one on a server, one in Redis."""
    if request.param == "redis":
        return StoreConfig(request.getfixturevalue("redis_url"), prefix=f"t{secrets.token_hex(6)}:")
    if request.param == "mysql":
        config = StoreConfig(request.getfixturevalue("mysql_url"), table=f"t{secrets.token_hex(6)}")
    else:
        config = StoreConfig(f"sqlite:///{tmp_path / 'runs.db'}")
    upgrade(config.url, table=config.table)
    return config


@pytest.fixture
def sqlite_store(tmp_path):
    config = StoreConfig(f"sqlite:///{tmp_path / 'runs.db'}")
    upgrade(config.url, table=config.table)
    return config
