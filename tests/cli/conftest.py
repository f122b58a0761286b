"""The command line in this process, and a store of each kind with keys in every state."""

import sys

import pytest
from sqlalchemy import MetaData
from typer.testing import CliRunner

from idempotent.outbox import Outbox, outbox_tables
from tests.cli.support import Cli
from tests.support.stores import SHARED, SQL, open_store


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in ("IDEMPOTENT_URL", "IDEMPOTENT_BROKER", "IDEMPOTENT_DEBUG", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def cli():
    return Cli(CliRunner())


@pytest.fixture(params=SHARED)
def store(request):
    yield from open_store(request.param, request)


@pytest.fixture(params=SQL)
def sql_store(request):
    yield from open_store(request.param, request)


@pytest.fixture
def sqlite_store(request):
    yield from open_store("sqlite", request)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty folder to write modules and files in, which is the current one."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    before = set(sys.modules)
    path = list(sys.path)
    yield folder
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def outbox(sql_store):
    metadata = MetaData()
    outbox_tables(metadata, sql_store.table)
    metadata.create_all(sql_store.admin_engine)
    made = Outbox(sql_store.engine(), table=sql_store.table)
    yield made
    made.close()
    sql_store.opened.close()
    metadata.drop_all(sql_store.admin_engine)
