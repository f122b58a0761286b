"""SQL stores of runs for tests, migrated once for each process: Alembic takes longer than most tests."""

from functools import cache
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from idempotent.migrations import upgrade
from idempotent.schema import run_tables


def sqlite_url(path):
    """A new file with empty tables of the default names."""
    Path(path).write_bytes(_file())
    return f"sqlite:///{path}"


def empty_table(url):
    """The name of a key table in this database; the tables of runs beside it are empty."""
    engine, name = _table(url)
    tables = run_tables(sa.MetaData(), name)
    with engine.begin() as connection:
        for table in (tables.claims, tables.runs):
            connection.execute(table.delete())
    return name


@cache
def _file():
    with TemporaryDirectory() as folder:
        path = Path(folder, "runs.db")
        upgrade(f"sqlite:///{path}")
        return path.read_bytes()


@cache
def _table(url):
    name = f"t{token_hex(6)}"
    upgrade(url, table=name)
    return sa.create_engine(url, poolclass=NullPool), name
