"""One store of each dialect, and a table name for each test."""

import pytest
from sqlalchemy import create_engine

from tests.migrations.support import scratch


@pytest.fixture(params=["sqlite", "mysql", "postgres"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/m.db"
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def engine(url):
    engine = create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def table(engine):
    """A name of its own for each test: all of them share the servers' databases."""
    with scratch(engine) as name:
        yield name
