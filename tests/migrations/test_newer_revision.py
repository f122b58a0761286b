"""A rolling deploy: the newer version has migrated, and a process of this version starts beside it."""

import logging

import pytest
from sqlalchemy import MetaData, Table, text
from typer.testing import CliRunner

from idempotent import Message, Outcome, Registry
from idempotent.checkers import SqlChecker
from idempotent.errors import SchemaError
from idempotent.migrations import DriftKind, check, current, downgrade, upgrade
from idempotent.schema import failures_name, version_name
from tests.cli.support import Cli
from tests.migrations.support import all_tables

pytestmark = pytest.mark.sample(3)


@pytest.fixture
def cli(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    return Cli(CliRunner())


def _migrated(engine, table, *statements):
    """What a later revision might do: `statements`, and its number."""
    upgrade(engine, table=table)
    _run(engine, *statements, f"UPDATE {version_name(table)} SET version_num = '0099'")


def _run(engine, *statements):
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def _harmless(engine, table):
    index = f"ix_{table}_expires_at"
    on = f" ON {table}" if engine.dialect.name == "mysql" else ""
    yield f"DROP INDEX {index}{on}"
    yield f"ALTER TABLE {table} ADD COLUMN note VARCHAR(20)"
    yield f"ALTER TABLE {table} ADD COLUMN weight INTEGER NOT NULL DEFAULT 1"
    yield f"CREATE TABLE {table}_later (id INTEGER NOT NULL)"
    failures = failures_name(table)
    if engine.dialect.name == "postgresql":
        yield f"ALTER TABLE {failures} ALTER attempts TYPE BIGINT, ALTER k TYPE VARCHAR(300), ALTER k DROP NOT NULL"
    elif engine.dialect.name == "mysql":
        yield f"ALTER TABLE {failures} MODIFY attempts BIGINT NOT NULL, MODIFY k VARCHAR(300)"


def test_a_database_that_has_all_that_this_version_needs_is_right(url, engine, table, cli, caplog):
    _migrated(engine, table, *_harmless(engine, table))
    before = _shapes(engine, table)
    with caplog.at_level(logging.INFO, "idempotent"):
        upgrade(url, table=table)
        upgrade(url, table=table, revision="0001", create_missing=True)
    assert [record.event for record in caplog.records] == ["schema_of_newer_version"] * 2
    assert check(url, table=table) == []
    assert current(url, table=table) == "0099"
    store = ["--url", url, "--table", table]
    for command in ("upgrade", "check", "current"):
        answer = cli("migrate", command, *store)
        assert answer.code == 0
        assert "revision 0099, which a newer version made" in " ".join(answer.out.split())
    assert cli("migrate", "upgrade", *store, "--json").line["differences"] == []
    assert not [finding for finding in cli("doctor", *store, "--json").lines if finding["level"] == "error"]
    assert _works(url, table)
    assert _shapes(engine, table) == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("DROP TABLE {table}_failures", "{table}_failures: missing table"),
        ("ALTER TABLE {table} DROP COLUMN fingerprint", "{table}.fingerprint: missing column"),
        ("CREATE UNIQUE INDEX uq_{table}_k ON {table} (k)", "{table}.uq_{table}_k: extra unique constraint"),
        ("DROP INDEX uq_{table}_runs_generation{on_runs}", "uq_{table}_runs_generation: missing index"),
        ("ALTER TABLE {table} ADD COLUMN must INTEGER NOT NULL", "{table}.must: extra column"),
        ("ALTER TABLE {table} {narrow}", "{table}.k: type"),
    ],
    ids=["table", "column", "unique", "not unique", "no default", "narrow"],
)
def test_one_that_lacks_what_this_version_needs_is_refused_by_name(url, engine, table, cli, change, named):
    dialect = engine.dialect.name
    if dialect == "sqlite" and ("{narrow}" in change or "must" in change):
        pytest.skip("SQLite has no such ALTER TABLE")
    on_runs = f" ON {table}_runs" if dialect == "mysql" else ""
    narrow = "MODIFY k VARCHAR(100) NOT NULL" if dialect == "mysql" else "ALTER k TYPE VARCHAR(100)"
    statement = change.format(table=table, on_runs=on_runs, narrow=narrow)
    _migrated(engine, table, *_harmless(engine, table), statement)
    before = _shapes(engine, table)
    named = named.format(table=table)
    with pytest.raises(SchemaError) as refused:
        upgrade(url, table=table, create_missing=True)
    words = str(refused.value)
    assert named in words
    assert "'0099'" in words
    assert "note" not in words
    assert "pdate idempotent-consumer" in words
    newer, lacking = check(url, table=table)
    assert newer.kind is DriftKind.NEWER_REVISION
    assert named in str(lacking)
    store = ["--url", url, "--table", table]
    answer = cli("migrate", "upgrade", *store)
    assert answer.code == 4
    assert named in "".join(answer.err.split("\n"))
    answer = cli("migrate", "check", *store)
    assert answer.code == 1
    assert "--create-missing" not in answer.out
    answer = cli("doctor", *store, "--json")
    assert answer.code == 1
    finding, *_ = [finding for finding in answer.lines if named in finding["what"]]
    assert finding["level"] == "error"
    assert finding["hint"].startswith("update idempotent-consumer")
    assert _shapes(engine, table) == before


def test_a_database_that_a_newer_version_migrated_is_not_taken_back(url, engine, table):
    _migrated(engine, table)
    before = _shapes(engine, table)
    with pytest.raises(SchemaError, match=r"'0099'.*newer version"):
        downgrade(url, table=table)
    assert _shapes(engine, table) == before


def _works(url, table):
    consumers, checker = Registry(), SqlChecker(url, table=table)

    @consumers.consumer("orders", checker=checker, max_attempts=2)
    def on_order(message):
        if message.id == "bad":
            raise ValueError

    outcomes = [on_order.process(Message("orders", id=name)).outcome for name in ("1", "1", "bad")]
    checker.close()
    return outcomes == [Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.FAILED]


def _shapes(engine, table):
    metadata = MetaData()
    metadata.reflect(engine, only=lambda name, _: name in all_tables(table))
    return {name: _shape(found) for name, found in metadata.tables.items()}


def _shape(table: Table):
    indexes = sorted(index.name for index in table.indexes)
    return [(column.name, str(column.type), column.nullable) for column in table.columns], indexes
