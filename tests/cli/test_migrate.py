"""`idempotent migrate` on every SQL store."""

import secrets
from contextlib import closing

import pytest
from sqlalchemy import create_engine, text

from idempotent.checkers import SqlChecker
from idempotent.claims import ClaimRequest
from idempotent.migrations import create_dedup_table
from tests.cli.support import BILLING, IN_OWN_HISTORY, at
from tests.migrations.support import operations
from tests.support.stores import open_store

pytestmark = pytest.mark.sample(3)


@pytest.fixture
def bare(sql_store):
    """A database in which the tables of this name are not there, and gone afterwards."""
    table = f"dedup_{secrets.token_hex(6)}"
    yield ["--url", sql_store.url, "--table", table]
    engine = create_engine(sql_store.url)
    with engine.begin() as connection:
        for name in (
            table,
            f"{table}_failures",
            f"{table}_runs",
            f"{table}_run_claims",
            f"{table}_alembic_version",
        ):
            connection.execute(text(f"DROP TABLE IF EXISTS {name}"))
    engine.dispose()


def test_upgrade_makes_the_tables_and_is_a_no_op_after_that(cli, bare):
    answer = cli("migrate", "upgrade", *bare, "--json")
    assert answer.code == 0
    assert answer.line == {"table": bare[3], "before": None, "revision": "0001", "differences": []}
    assert "Up to date" in cli("migrate", "upgrade", *bare).out
    assert cli("migrate", "check", *bare).code == 0
    assert cli("migrate", "current", *bare, "--json").line == {
        "table": bare[3],
        "revision": "0001",
        "own_history": False,
    }


def test_current_recognises_tables_of_an_own_history(cli, tmp_path):
    url = f"sqlite:///{tmp_path / 'own.db'}"
    engine = create_engine(url)
    with operations(engine):
        create_dedup_table()
    engine.dispose()
    answer = cli("migrate", "current", "--url", url)
    assert answer.code == 0
    assert "Own history" in answer.out


def test_current_without_tables_is_none(cli, bare):
    answer = cli("migrate", "current", *bare)
    assert answer.code == 1
    assert "None" in answer.out


def test_downgrade_asks_and_removes(cli, bare):
    cli("migrate", "upgrade", *bare)
    refused = cli("migrate", "downgrade", *bare, input="n\n")
    assert refused.code == 1
    assert "every key in it" in refused.err
    assert cli("migrate", "check", *bare).code == 0
    assert cli("migrate", "downgrade", *bare, "--yes", "--json").line["revision"] is None
    assert cli("migrate", "check", *bare).code == 1
    assert "Nothing to do" in cli("migrate", "downgrade", *bare).out


def test_check_of_missing_tables_says_what_to_type(cli, bare):
    answer = cli("migrate", "check", *bare)
    assert answer.code == 1
    assert "missing table" in answer.out
    assert "idempotent migrate upgrade --url " in answer.out
    assert f"--table {bare[3]}" in answer.out
    assert f"Or, {IN_OWN_HISTORY.format(bare[3])}" in answer.out
    assert "idempotent:idempotent@" not in answer.out


def test_check_lists_every_difference(cli, bare):
    table = bare[3]
    cli("migrate", "upgrade", *bare)
    engine = create_engine(bare[1])
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {table} ADD COLUMN extra INTEGER"))
        on = f" ON {table}" if engine.dialect.name == "mysql" else ""
        connection.execute(text(f"DROP INDEX ix_{table}_expires_at{on}"))
    engine.dispose()
    answer = cli("migrate", "check", *bare, "--json")
    assert answer.code == 1
    found = {(drift["kind"], drift["name"]) for drift in answer.line["differences"]}
    assert found == {("extra column", "extra"), ("missing index", f"ix_{table}_expires_at")}
    assert "extra column" in cli("migrate", "check", *bare).out


def test_a_transactional_url_is_the_same_database(cli, sql_store):
    words = at(sql_store)
    words[1] = f"transactional+{words[1]}"
    assert cli("migrate", "check", *words).code == 0


def test_a_redis_store_has_nothing_to_migrate(cli, request):
    for store in open_store("redis", request):
        answer = cli("migrate", "upgrade", "--url", store.url)
        assert answer.code == 3
        assert "only SQL stores have tables" in answer.err


def test_somebody_elses_table_is_left_alone(cli, bare):
    engine = create_engine(bare[1])
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {bare[3]} (id INTEGER, k VARCHAR(100), update_at INTEGER)"))
    engine.dispose()
    answer = cli("migrate", "upgrade", *bare)
    assert answer.code == 4
    assert "QMQ" in answer.err
    assert "Nothing was changed" in " ".join(answer.err.split())


@pytest.mark.parametrize("gone", ["DROP TABLE {}_failures", "ALTER TABLE {} DROP COLUMN fence"])
def test_upgrade_says_what_is_missing_of_tables_that_it_has_made(cli, bare, gone):
    table = bare[3]
    cli("migrate", "upgrade", *bare)
    engine = create_engine(bare[1])
    with engine.begin() as connection:
        connection.execute(text(gone.format(table)))
    engine.dispose()
    answer = cli("migrate", "upgrade", *bare)
    assert answer.code == 4
    said = " ".join(answer.err.replace("│", " ").split())
    name = f"{table}_failures: missing table" if "TABLE {}_" in gone else f"{table}.fence: missing column"
    assert name in said
    assert "Nothing was changed" in said
    assert ("--create-missing" in said) == ("TABLE {}_" in gone)
    assert cli("migrate", "downgrade", *bare, "--yes").code == 0
    assert "Done" in cli("migrate", "upgrade", *bare).out


@pytest.mark.parametrize("part", ["failures", "outbox_held"])
def test_upgrade_creates_missing_tables_with_its_option(cli, bare, part):
    table = bare[3]
    cli("migrate", "upgrade", *bare)
    engine = create_engine(bare[1])
    with engine.begin() as connection:
        connection.execute(text(f"DROP TABLE {table}_{part}"))
    with closing(SqlChecker(bare[1], table=table)) as checker:
        checker.lone.claim(ClaimRequest(BILLING.key("1")))
    for said in ("Done", "Up to date"):
        answer = cli("migrate", "upgrade", *bare, "--create-missing")
        assert answer.code == 0
        assert said in answer.out
    assert cli("migrate", "check", *bare).code == 0
    with engine.connect() as connection:
        assert connection.execute(text(f"SELECT COUNT(*) FROM {table}")).scalar() == 1
    engine.dispose()


def test_upgrade_shows_what_differs_otherwise(cli, bare):
    table = bare[3]
    cli("migrate", "upgrade", *bare)
    engine = create_engine(bare[1])
    with engine.begin() as connection:
        on = f" ON {table}" if engine.dialect.name == "mysql" else ""
        connection.execute(text(f"DROP INDEX ix_{table}_expires_at{on}"))
    engine.dispose()
    answer = cli("migrate", "upgrade", *bare)
    assert answer.code == 1
    assert "missing index" in answer.out
    assert "Up to date" not in answer.out
    again = cli("migrate", "upgrade", *bare, "--json")
    assert [drift["kind"] for drift in again.line["differences"]] == ["missing index"]
