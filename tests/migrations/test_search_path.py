"""Tables of one name in two schemas of PostgreSQL's search_path: all come from one of them, or are refused by name."""

import re

import pytest
from sqlalchemy import create_engine, inspect, make_url, text
from sqlalchemy.pool import NullPool
from typer.testing import CliRunner

from idempotent import Message, Outcome, Registry
from idempotent.checkers import SqlChecker
from idempotent.errors import SchemaError
from idempotent.migrations import (
    DriftKind,
    check,
    create_dedup_table,
    current,
    downgrade,
    drop_dedup_table,
    upgrade,
)
from tests.cli.support import Cli
from tests.migrations.support import TABLES, everything, operations


class Two:
    """Two schemas, and the URLs of sessions that look into one, or into both in an order."""

    def __init__(self, url):
        self.url = make_url(url)
        self.table = next(TABLES)
        self.near, self.far = f"{self.table}_near", f'{self.table} "far'

    def at(self, *schemas):
        path = ",".join('"{}"'.format(schema.replace('"', '""')) for schema in schemas)
        # A blank in an option needs a backslash.
        url = self.url.update_query_dict({"options": f"-csearch_path={path}".replace(" ", "\\ ")})
        return url.render_as_string(hide_password=False)

    @property
    def both(self):
        return self.at(self.near, self.far)

    def run(self, *statements):
        engine = create_engine(self.url, poolclass=NullPool)
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def tables(self, schema):
        engine = create_engine(self.url, poolclass=NullPool)
        return sorted(inspect(engine).get_table_names(schema=schema))

    def quoted(self, schema, table):
        return '"{}"."{}"'.format(schema.replace('"', '""'), table)


@pytest.fixture
def two(postgres_url):
    two = Two(postgres_url)
    schemas = ['"{}"'.format(name.replace('"', '""')) for name in (two.near, two.far)]
    two.run(*(f"CREATE SCHEMA {schema}" for schema in schemas))
    yield two
    two.run(*(f"DROP SCHEMA {schema} CASCADE" for schema in schemas))


@pytest.fixture
def cli(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    return Cli(CliRunner())


def outcomes(url, table):
    consumers, checker = Registry(), SqlChecker(url, table=table)

    @consumers.consumer("orders", checker=checker, max_attempts=2)
    def on_order(message):
        if message.id == "bad":
            raise ValueError

    found = [on_order.process(Message("orders", id=name)).outcome for name in ("1", "bad")]
    checker.close()
    return found


def test_tables_in_a_later_schema_are_used_and_never_hidden_by_new_ones(two, cli):
    upgrade(two.at(two.far), table=two.table)
    assert check(two.both, table=two.table) == []
    assert current(two.both, table=two.table) == "0001"
    assert outcomes(two.both, two.table) == [Outcome.PROCESSED, Outcome.FAILED]
    engine = create_engine(two.both, poolclass=NullPool)
    for change in (upgrade, downgrade):
        with pytest.raises(SchemaError, match=f"{two.near}.*{two.far}") as refused:
            change(engine, table=two.table)
    for change in (create_dedup_table, drop_dedup_table):
        with operations(engine), pytest.raises(SchemaError, match=f"{two.near}.*{two.far}"):
            change(table=two.table)
    assert two.tables(two.near) == []
    assert two.tables(two.far) == everything(two.table)
    assert outcomes(two.both, two.table)[0] is Outcome.DUPLICATE
    answer = cli("migrate", "upgrade", "--url", two.both, "--table", two.table)
    assert answer.code == 4
    # The words that it says to write work.
    led_far, led_near = re.findall(r"\?(options=\S+)", str(refused.value))
    base = two.url.render_as_string(hide_password=False)
    join = "&" if two.url.query else "?"
    upgrade(f"{base}{join}{led_far}", table=two.table)
    assert two.tables(two.near) == []
    upgrade(f"{base}{join}{led_near}", table=two.table)
    assert two.tables(two.near) == everything(two.table)


def test_a_table_that_lies_apart_from_the_key_table_is_named_with_what_to_type(two, cli):
    upgrade(two.at(two.near), table=two.table)
    apart = f"{two.table}_failures"
    there = '"{}"'.format(two.far.replace('"', '""'))
    two.run(f"ALTER TABLE {two.quoted(two.near, apart)} SET SCHEMA {there}")
    (drift,) = check(two.both, table=two.table)
    assert (drift.kind, drift.table) == (DriftKind.OTHER_SCHEMA, apart)
    findings = cli("doctor", "--url", two.both, "--table", two.table, "--json").lines
    assert [each["level"] for each in findings if apart in each["what"]] == ["error"]
    for create_missing in (False, True):
        with pytest.raises(SchemaError, match=f"{two.near}.*{apart}.*{two.far}"):
            upgrade(two.both, table=two.table, create_missing=create_missing)
    assert apart not in two.tables(two.near)
    two.run(drift.detail.partition("SQL: ")[2])
    assert check(two.both, table=two.table) == []
    upgrade(two.both, table=two.table)


def test_where_both_have_all_tables_the_first_ones_are_looked_at(two):
    for schema in (two.near, two.far):
        upgrade(two.at(schema), table=two.table)
    two.run(f"ALTER TABLE {two.quoted(two.far, two.table)} DROP COLUMN result")
    two.run(f"DROP TABLE {two.quoted(two.far, f'{two.table}_failures')}")
    assert check(two.both, table=two.table) == []
    assert outcomes(two.both, two.table) == [Outcome.PROCESSED, Outcome.FAILED]
    downgrade(two.at(two.near, "public"), table=two.table)
    assert two.tables(two.near) == []
    assert two.table in two.tables(two.far)


def test_an_outbox_of_its_own_history_is_looked_at_where_it_is(two):
    upgrade(two.at(two.far), table=two.table)
    two.run(
        *(f"DROP TABLE {two.quoted(two.far, name)}" for name in (two.table, f"{two.table}_alembic_version"))
    )
    two.run(*(f"DROP TABLE {two.quoted(two.far, f'{two.table}_{name}')}" for name in ("failures", "offsets")))
    engine = create_engine(two.at(two.near), poolclass=NullPool)
    with operations(engine):
        create_dedup_table(table=two.table)
    assert check(two.both, table=two.table) == []
    two.run(f"ALTER TABLE {two.quoted(two.far, f'{two.table}_outbox')} DROP COLUMN body")
    assert [(each.kind, each.name) for each in check(two.both, table=two.table)] == [
        (DriftKind.MISSING_COLUMN, "body")
    ]
