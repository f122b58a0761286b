"""The plain `alembic` command with the packaged environment."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, text

from idempotent import migrations
from idempotent.migrations import DriftKind, check, current
from tests.migrations.support import names


@pytest.fixture
def ini(url, tmp_path):
    ini = tmp_path / "alembic.ini"
    folder = Path(migrations.__file__).parent
    ini.write_text(f"[alembic]\nscript_location = {folder}\npath_separator = os\nsqlalchemy.url = {url}\n")
    return ini


@pytest.mark.slow
def test_upgrades_and_downgrades(ini, url, table):
    alembic(ini, table, "upgrade", "head")
    assert check(url, table=table) == []
    assert current(url, table=table) == "0001"
    alembic(ini, table, "downgrade", "base")
    assert [drift.kind for drift in check(url, table=table)] == [DriftKind.MISSING_TABLE] * 9


@pytest.mark.slow
def test_prints_sql_that_makes_the_same(ini, url, engine, table):
    script = alembic(ini, table, "upgrade", "head", "--sql")
    assert names(engine, table) == []
    with engine.begin() as connection:
        for statement in "\n".join(line for line in script.splitlines() if line[:2] != "--").split(";"):
            if statement.strip() not in {"", "BEGIN", "COMMIT"}:
                connection.execute(text(statement))
    assert check(url, table=table) == []
    assert current(url, table=table) == "0001"


@pytest.mark.slow
def test_refuses_what_upgrade_refuses(ini, engine, table):
    Table(table, MetaData(), Column("id", Integer, primary_key=True)).create(engine)
    with pytest.raises(subprocess.CalledProcessError) as error:
        alembic(ini, table, "upgrade", "head")
    assert "SchemaError" in error.value.stderr
    assert names(engine, table) == [table]


def alembic(ini, table, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "alembic", "-c", str(ini), "-x", f"table={table}", *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    ).stdout
