"""What the tests of the migrations share."""

import subprocess
import sys
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import MetaData, func, insert, inspect, select, text

from idempotent.schema import (
    dedup_tables,
    failures_name,
    offsets_name,
    outbox_name,
    outbox_tables,
    run_claims_name,
    run_tables,
    runs_name,
    version_name,
)


def names(engine, table):
    return sorted(name for name in inspect(engine).get_table_names() if name.startswith(table))


def everything(table):
    return sorted([*all_tables(table), version_name(table)])


def all_tables(table):
    """All but the one that records the revision."""
    return [*key_tables(table), *ledger_tables(table), *outboxes(table)]


def key_tables(table):
    return [table, failures_name(table), offsets_name(table)]


def ledger_tables(table):
    return [runs_name(table), run_claims_name(table)]


def outboxes(table):
    name = outbox_name(table)
    return sorted([name, f"{name}_delayed", f"{name}_held", f"{name}_leases"])


def expected(table, *, runs=True, outbox=True):
    metadata = MetaData()
    dedup_tables(metadata, table)
    if runs:
        run_tables(metadata, table)
    if outbox:
        outbox_tables(metadata, table)
    return metadata


def differences(engine, metadata, table, **options):
    """What autogenerate would write about the tables that belong to `table`."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True, **options})
        found = compare_metadata(context, metadata)
    return [step for step in found if table in repr(step)]


def add_key(engine, table):
    with engine.begin() as connection:
        connection.execute(
            insert(expected(table).tables[table]),
            {
                "key_hash": b"h" * 20,
                "k": "k",
                "status": 1,
                "owner": b"o" * 16,
                "fence": 1,
                "update_at": 1,
                "expires_at": 2,
            },
        )


def rows(engine, table):
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(text(table)))


SERVERS = ["mysql", "postgres"]
TRANSACTIONAL_DDL = ["sqlite", "postgres"]
TABLES = (f"m{number}" for number in count())


@contextmanager
def scratch(engine):
    name = next(TABLES)
    try:
        yield name
    finally:
        metadata = MetaData()
        metadata.reflect(engine, only=lambda found, _: found.startswith(name))
        metadata.drop_all(engine)
        engine.dispose()


@contextmanager
def operations(engine):
    """`alembic.op` as a migration sees it."""
    with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        yield


def python(code):
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
