"""`check` finds each way a table can be wrong; most tests create one wrong."""

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    create_engine,
    text,
)
from sqlalchemy.dialects import mysql

from idempotent.migrations import Drift, DriftKind, check, current, upgrade
from idempotent.schema import failures_name, offsets_name, run_claims_name, runs_name
from tests.migrations.support import expected, ledger_tables, names, outboxes, scratch

pytestmark = pytest.mark.sample(3)


def test_says_what_is_missing(url, table):
    assert [str(drift) for drift in check(url, table=table)] == [
        f"{table}: missing table: run the migrations",
        f"{table}_failures: missing table: run the migrations",
        f"{table}_offsets: missing table: run the migrations",
    ]


def test_one_table_missing(url, engine, table):
    for name in (table, offsets_name(table)):
        expected(table).tables[name].create(engine)
    assert [(d.kind, d.table) for d in check(url, table=table)] == [
        (DriftKind.MISSING_TABLE, f"{table}_failures")
    ]


def test_an_own_history_without_the_run_ledger_is_no_drift(url, engine, table):
    expected(table, runs=False).create_all(engine)
    assert check(url, table=table) == []


def test_one_of_the_ledgers_two_tables_missing(url, engine, table):
    expected(table).create_all(engine)
    expected(table).tables[run_claims_name(table)].drop(engine)
    assert [(d.kind, d.table) for d in check(url, table=table)] == [
        (DriftKind.MISSING_TABLE, run_claims_name(table))
    ]


def test_a_recorded_revision_without_the_run_ledger_and_the_outbox_is_drift(url, engine, table):
    upgrade(url, table=table)
    gone = [*ledger_tables(table), *outboxes(table)]
    tables = expected(table).tables
    for name in gone:
        tables[name].drop(engine)
    drifts = check(url, table=table)
    assert {drift.kind for drift in drifts} == {DriftKind.MISSING_TABLE}
    assert sorted(drift.table for drift in drifts) == sorted(gone)


def test_a_missing_index_of_the_ledger(url, engine, table):
    upgrade(url, table=table)
    indexes = expected(table).tables[runs_name(table)].indexes
    next(index for index in indexes if index.unique).drop(engine)
    (drift,) = check(url, table=table)
    assert str(drift) == (
        f"{table}_runs.uq_{table}_runs_generation: missing index: on (run_hash, generation)"
    )


def test_a_missing_column(url, engine, table):
    make(engine, table, without="fence")
    assert check(url, table=table) == [Drift(DriftKind.MISSING_COLUMN, table, "fence", "expected BIGINT")]


def test_an_extra_column(url, engine, table):
    make(engine, table, extra=[Column("note", Integer)])
    (drift,) = check(url, table=table)
    found = "INTEGER(11)" if drift.detail.endswith("(11)") else "INTEGER"  # the width is MariaDB's
    assert str(drift) == f"{table}.note: extra column: found {found}"


@pytest.mark.parametrize(
    ("column", "wrong", "found"),
    [
        ("k", String(100), "VARCHAR(100)"),
        ("update_at", Integer(), "INTEGER"),
        ("expires_at", DateTime(), ""),
        ("status", BigInteger(), "BIGINT"),
    ],
)
def test_a_wrong_type(url, engine, table, column, wrong, found):
    make(engine, table, types={column: wrong})
    (drift,) = check(url, table=table)
    assert (drift.kind, drift.table, drift.name) == (DriftKind.TYPE, table, column)
    assert drift.detail.startswith(f"found {found}")


@pytest.mark.parametrize("wrong", [mysql.BINARY(16), mysql.VARBINARY(20), mysql.BLOB()])
def test_a_binary_column_of_another_width_on_mysql(mysql_url, wrong):
    engine = create_engine(mysql_url)
    with scratch(engine) as table:
        make(engine, table, types={"fingerprint": wrong})
        (drift,) = check(mysql_url, table=table)
        assert (drift.kind, drift.name) == (DriftKind.TYPE, "fingerprint")
        assert "expected BINARY(20)" in str(drift)


def test_an_engine_without_transactions_on_mysql(mysql_url):
    engine = create_engine(mysql_url)
    with scratch(engine) as table:
        upgrade(mysql_url, table=table)
        with engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE {table} ENGINE=MyISAM"))
        (drift,) = check(mysql_url, table=table)
        assert str(drift) == f"{table}: storage engine: found MyISAM, expected InnoDB"


def test_the_other_name_of_the_dialect(mysql_url):
    url = mysql_url.replace("mysql+", "mariadb+", 1)
    engine = create_engine(mysql_url)
    try:
        with engine.connect() as connection:
            if not connection.dialect.is_mariadb:
                pytest.skip("the server is MySQL")
        with scratch(engine) as table:
            upgrade(url, table=table)
            assert check(url, table=table) == check(mysql_url, table=table) == []
            with engine.begin() as connection:
                connection.execute(text(f"ALTER TABLE {table} ENGINE=MyISAM"))
            assert [drift.kind for drift in check(url, table=table)] == [DriftKind.ENGINE]
    finally:
        engine.dispose()


@pytest.mark.parametrize(
    ("column", "words"), [("k", "NULL, expected NOT NULL"), ("result", "NOT NULL, expected NULL")]
)
def test_a_wrong_nullability(url, engine, table, column, words):
    make(engine, table, flip_null=column)
    assert check(url, table=table) == [Drift(DriftKind.NULLABLE, table, column, f"found {words}")]


def test_a_missing_index(url, engine, table):
    make(engine, table)
    next(iter(expected(table).tables[table].indexes)).drop(engine)
    (drift,) = check(url, table=table)
    assert str(drift) == f"{table}.ix_{table}_expires_at: missing index: on (expires_at)"


def test_an_index_on_something_else_under_the_name(url, engine, table):
    make(engine, table, index="update_at")
    (drift,) = check(url, table=table)
    assert drift.kind is DriftKind.MISSING_INDEX


def test_a_primary_key_on_something_else(url, engine, table):
    make(engine, table, primary_key="owner")
    (drift,) = check(url, table=table)
    assert str(drift) == f"{table}: primary key: found (owner), expected (key_hash)"


def test_no_primary_key(url, engine, table):
    make(engine, table, primary_key=None)
    (drift,) = check(url, table=table)
    assert str(drift) == f"{table}: primary key: found (none), expected (key_hash)"


def test_a_primary_key_on_the_beginning_of_a_column(mysql_url):
    engine = create_engine(mysql_url)
    with scratch(engine) as table:
        upgrade(mysql_url, table=table)
        with engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE {table} DROP PRIMARY KEY, ADD PRIMARY KEY (key_hash(10))"))
        (drift,) = check(mysql_url, table=table)
        assert str(drift) == f"{table}: primary key: found (key_hash(10)), expected (key_hash)"


@pytest.mark.parametrize("suffix", ["_outbox", "_outbox_delayed"])
def test_an_outbox_that_no_longer_numbers_its_rows(url, engine, table, suffix):
    if engine.dialect.name == "sqlite":
        pytest.skip("an INTEGER PRIMARY KEY of SQLite is always numbered")
    upgrade(url, table=table)
    name = table + suffix
    change = "MODIFY id BIGINT NOT NULL" if engine.dialect.name == "mysql" else "ALTER id DROP DEFAULT"
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {name} {change}"))
    (drift,) = check(url, table=table)
    assert str(drift) == f"{name}.id: type: found BIGINT, expected BIGINT, numbered by the database"


def test_a_unique_constraint_that_would_refuse_good_keys(url, engine, table):
    make(engine, table, extra=[UniqueConstraint("fence", name=f"uq_{table}")])
    (drift,) = check(url, table=table)
    assert str(drift) == f"{table}.uq_{table}: extra unique constraint: on (fence)"


def test_a_unique_index_that_would_refuse_good_keys(url, engine, table):
    make(engine, table, extra=[Index(f"uq_{table}", "fence", unique=True)])
    assert [drift.kind for drift in check(url, table=table)] == [DriftKind.EXTRA_UNIQUE]


def test_a_plain_index_somebody_added_is_no_drift(url, engine, table):
    make(engine, table, extra=[Index(f"ix_{table}_more", "update_at")])
    assert check(url, table=table) == []


def test_changes_nothing(url, engine, table):
    check(url, table=table)
    current(url, table=table)
    assert names(engine, table) == []


def make(
    engine,
    table,
    *,
    without=None,
    types=None,
    flip_null=None,
    extra=(),
    index="expires_at",
    primary_key="key_hash",
):
    """Create the tables with one thing wrong in the first."""
    right = expected(table)
    for name in (failures_name(table), offsets_name(table)):
        right.tables[name].create(engine)
    columns = []
    for column in right.tables[table].columns:
        if column.name != without:
            copy = Column(column.name, (types or {}).get(column.name, column.type), nullable=column.nullable)
            copy.primary_key = column.name == primary_key
            copy.nullable = column.nullable != (column.name == flip_null)
            columns.append(copy)
    options = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
    wrong = Table(table, MetaData(), *columns, Index(f"ix_{table}_expires_at", index), *extra, **options)
    wrong.create(engine)
