"""The definition of the tables."""

import dataclasses
import re
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, inspect, text

from idempotent.errors import ConfigurationError
from idempotent.schema import (
    DEFAULT_TABLE,
    dedup_tables,
    failures_name,
    outbox_tables,
    run_claims_name,
    run_tables,
    runs_name,
    validate_table_name,
    version_name,
)

DECISION = Path(__file__).parent.parent / "docs/decisions/0002-times-are-microseconds.md"
NOON_UTC = 1_760_961_600_123_456  # 2025-10-20 12:00:00.123456
ROW = {
    "key_hash": b"h" * 20,
    "k": "orders/é/1",
    "status": 1,
    "owner": b"o" * 16,
    "fence": NOON_UTC,
    "update_at": NOON_UTC,
    "expires_at": NOON_UTC,
}


@pytest.fixture(params=["sqlite", "mysql", "postgres"])
def engine(request, tmp_path):
    url = f"sqlite:///{tmp_path}/s.db"
    if request.param != "sqlite":
        url = request.getfixturevalue(f"{request.param}_url")
    engine = create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def tables(engine):
    metadata = MetaData()
    tables = dedup_tables(metadata, "schema_test")
    metadata.drop_all(engine)
    metadata.create_all(engine)
    yield tables
    metadata.drop_all(engine)


@pytest.mark.parametrize("name", ["deduplicate_tbl", "_x", "T1", "a" * 40, "select"])
def test_a_plain_identifier_is_a_table_name(name):
    assert validate_table_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1st",
        "a-b",
        "a b",
        "a.b",
        "a;drop table b",
        'a"b',
        "a`b",
        "tablé",
        "１a",
        "a١",
        "a\n",
        "a" * 41,
        "x\0",
        "pg_class",
        "SQLite_x",
    ],
)
def test_anything_else_is_refused_with_the_rule(name):
    with pytest.raises(ConfigurationError, match=r"1 to 40 ASCII letters, digits and underscores") as error:
        dedup_tables(MetaData(), name)
    assert repr(name) in str(error.value)


def test_the_longest_name_leaves_room_for_every_name_made_from_it():
    longest = "a" * 40
    metadata = MetaData()
    dedup_tables(metadata, longest)
    run_tables(metadata, longest)
    outbox_tables(metadata, longest)
    made = [version_name(longest) + "_pkc"]
    for table in metadata.tables.values():
        made += [table.name, str(table.primary_key.name), *(str(index.name) for index in table.indexes)]
    assert max(map(len, made)) <= 63


def test_both_tables_follow_the_name():
    tables = dedup_tables(MetaData(), "mine")
    assert (tables.keys.name, tables.failures.name) == ("mine", failures_name("mine"))
    assert dedup_tables(MetaData()).keys.name == DEFAULT_TABLE == "deduplicate_tbl"


def test_the_run_ledger_has_two_tables_beside_them():
    tables = run_tables(MetaData(), "mine")
    assert (tables.runs.name, tables.claims.name) == (runs_name("mine"), run_claims_name("mine"))


def test_the_pair_of_tables_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        dedup_tables(MetaData()).keys = None


def test_defining_them_twice_finds_the_first():
    metadata = MetaData()
    assert dedup_tables(metadata) == dedup_tables(metadata)


def test_another_table_of_that_name_in_the_metadata_is_not_taken_over():
    metadata = MetaData()
    Table(failures_name(DEFAULT_TABLE), metadata, Column("id", Integer))
    with pytest.raises(ConfigurationError, match="deduplicate_tbl_failures"):
        dedup_tables(metadata)


def test_default_schema_and_naming_convention_of_an_application_change_nothing():
    theirs = MetaData(
        schema="shop", naming_convention={"ix": "theirs_%(column_0_label)s", "pk": "theirs_%(table_name)s"}
    )
    tables = dedup_tables(theirs)
    assert tables.keys.schema is None
    assert tables.keys.primary_key.name == "pk_deduplicate_tbl"
    assert [index.name for index in tables.keys.indexes] == ["ix_deduplicate_tbl_expires_at"]


def test_create_all_makes_them(engine, tables):
    inspector = inspect(engine)
    assert inspector.get_pk_constraint("schema_test")["constrained_columns"] == ["key_hash"]
    for name in ("schema_test", "schema_test_failures"):
        assert [index["column_names"] for index in inspector.get_indexes(name)] == [["expires_at"]]


def test_binary_and_text_come_back_as_they_went_in(engine, tables):
    row = ROW | {
        "key_hash": b"\x00 " * 10,
        "owner": b"\x00" * 16,
        "k": "😀" * 255,
        "result": b"\x00\xff" * 50_000,
        "lease_until": None,
        "fingerprint": b" " * 20,
    }
    with engine.begin() as connection:
        connection.execute(insert(tables.keys), row)
        assert dict(connection.execute(tables.keys.select()).one()._mapping) == row


def test_mysql_keeps_them_in_innodb_as_exact_bytes(mysql_url):
    engine = create_engine(mysql_url)
    metadata = MetaData()
    dedup_tables(metadata, "schema_innodb")
    with engine.begin() as connection:
        metadata.create_all(connection)
        for name in metadata.tables:
            _, ddl = connection.exec_driver_sql(f"SHOW CREATE TABLE {name}").one()
            assert "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4" in ddl
            assert "`key_hash` binary(20) NOT NULL" in ddl
            assert "`k` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL" in ddl
        metadata.drop_all(connection)
    engine.dispose()


def test_postgresql_leaves_room_on_the_page_for_the_update(postgres_url):
    engine = create_engine(postgres_url)
    metadata = MetaData()
    dedup_tables(metadata, "schema_fill")
    with engine.begin() as connection:
        metadata.create_all(connection)
        found = connection.execute(
            text("SELECT reloptions FROM pg_class WHERE relname = 'schema_fill'")
        ).scalar()
        metadata.drop_all(connection)
    engine.dispose()
    assert found == ["fillfactor=70"]


def test_sqlite_needs_no_second_tree_for_the_key(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/s.db")
    metadata = MetaData()
    dedup_tables(metadata)
    run_tables(metadata)
    with engine.begin() as connection:
        metadata.create_all(connection)
        statements = (
            connection.execute(text("SELECT sql FROM sqlite_master WHERE type = 'table'")).scalars().all()
        )
    engine.dispose()
    assert len(statements) == len(metadata.tables)
    assert all("WITHOUT ROWID" in statement for statement in statements)


def test_the_documented_sql_shows_times_in_utc_in_any_session_zone(engine, tables):
    rows = re.findall(r"^\| (\w+)[^|]*\| `(SELECT .*)` \|$", DECISION.read_text(), re.MULTILINE)
    documented = {store.lower(): sql.replace(DEFAULT_TABLE, "schema_test") for store, sql in rows}
    dialect = engine.dialect.name
    zone = {"mysql": "SET time_zone = '+09:00'", "postgresql": "SET LOCAL TIME ZONE 'Asia/Tokyo'"}
    with engine.connect() as connection:
        connection.execute(insert(tables.keys), ROW)
        if dialect in zone:
            connection.execute(text(zone[dialect]))
        key, shown = connection.execute(text(documented[dialect])).one()
    assert key == ROW["k"]
    precise = "" if dialect == "sqlite" else ".123456"
    assert str(shown) == f"2025-10-20 12:00:00{precise}"
