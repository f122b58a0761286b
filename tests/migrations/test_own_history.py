"""The tables in an application's own Alembic history."""

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, text

from idempotent.errors import ConfigurationError, SchemaError
from idempotent.migrations import (
    check,
    create_dedup_table,
    create_outbox_tables,
    create_run_tables,
    current,
    drop_dedup_table,
    drop_outbox_tables,
    drop_run_tables,
    ignore_dedup_tables,
    upgrade,
)
from idempotent.schema import DEFAULT_TABLE
from tests.migrations.project import Project
from tests.migrations.support import (
    add_key,
    differences,
    everything,
    expected,
    key_tables,
    names,
    operations,
    outboxes,
    rows,
    scratch,
)

pytestmark = pytest.mark.sample(3)


class TestOwnHistory:
    def test_creates_what_the_library_creates(self, url, engine, table):
        with operations(engine):
            create_dedup_table(table=table)
        assert names(engine, table) == sorted(key_tables(table))
        assert check(url, table=table) == []
        assert differences(engine, expected(table, runs=False, outbox=False), table) == []

    def test_the_run_ledger_comes_with_a_step_of_its_own(self, url, engine, table):
        with operations(engine):
            create_dedup_table(table=table)
        add_key(engine, table)
        with operations(engine):
            create_run_tables(table=table)
        assert check(url, table=table) == []
        assert differences(engine, expected(table, outbox=False), table) == []
        with operations(engine):
            create_run_tables(table=table)  # equal ones are kept
            drop_run_tables(table=table)
        assert names(engine, table) == sorted(key_tables(table))
        assert rows(engine, table) == 1

    def test_the_outbox_comes_with_a_step_of_its_own(self, url, engine, table):
        with operations(engine):
            create_dedup_table(table=table)
            create_outbox_tables(table=table)
            create_outbox_tables(table=table)  # equal ones are kept
        assert names(engine, table) == sorted([*key_tables(table), *outboxes(table)])
        assert check(url, table=table) == []
        assert differences(engine, expected(table, runs=False), table) == []
        with engine.begin() as connection:
            connection.execute(text(f"DROP TABLE {table}_outbox_held"))
        assert [drift.table for drift in check(url, table=table)] == [f"{table}_outbox_held"]
        with operations(engine):
            drop_outbox_tables(table=table)
        assert names(engine, table) == sorted(key_tables(table))

    def test_the_run_ledger_refuses_a_foreign_table(self, engine, table):
        Table(f"{table}_runs", MetaData(), Column("id", Integer, primary_key=True)).create(engine)
        with operations(engine), pytest.raises(SchemaError, match="missing column"):
            create_run_tables(table=table)
        assert names(engine, table) == [f"{table}_runs"]

    def test_drops_it_again(self, engine, table):
        with operations(engine):
            create_dedup_table(table=table)
            drop_dedup_table(table=table)
        assert names(engine, table) == []

    def test_refuses_a_foreign_table(self, engine, table):
        Table(table, MetaData(), Column("id", Integer, primary_key=True)).create(engine)
        with operations(engine), pytest.raises(SchemaError, match="missing column"):
            create_dedup_table(table=table)
        assert names(engine, table) == [table]

    def test_it_is_quiet_about_what_it_finds(self, engine, table, caplog):
        with caplog.at_level("INFO"), operations(engine):
            create_dedup_table(table=table)
            create_dedup_table(table=table)
        assert "Detected" not in caplog.text

    def test_a_library_run_on_top_only_notes_the_revision(self, url, engine, table):
        with operations(engine):
            create_dedup_table(table=table)
        add_key(engine, table)
        upgrade(url, table=table)
        assert current(url, table=table) == "0001"
        assert check(url, table=table) == []
        assert rows(engine, table) == 1

    def test_can_take_over_from_the_library(self, url, engine, table):
        upgrade(url, table=table)
        add_key(engine, table)
        with operations(engine):
            create_dedup_table(table=table)
        assert rows(engine, table) == 1

    def test_postgresql_keeps_room_on_the_page_whoever_made_the_table(self, postgres_url):
        engine = create_engine(postgres_url)
        sql = text("SELECT reloptions FROM pg_class WHERE relname = :name")
        with scratch(engine) as one, scratch(engine) as two, scratch(engine) as lost:
            upgrade(postgres_url, table=one)
            with operations(engine):
                create_dedup_table(table=two)
            upgrade(postgres_url, table=lost)
            expected(lost).tables[lost].drop(engine)
            upgrade(postgres_url, table=lost, create_missing=True)
            with engine.connect() as connection:
                assert [connection.scalar(sql, {"name": name}) for name in (one, two, lost)] == [
                    ["fillfactor=70"]
                ] * 3

    @pytest.mark.parametrize("way", ["target_metadata", "include_object"])
    def test_a_real_project_goes_up_has_nothing_to_autogenerate_and_goes_down(
        self, url, engine, table, tmp_path, way
    ):
        project = Project(tmp_path / way, url, table, way)
        project.write_by_hand()
        project.up()
        assert check(url, table=table) == []
        assert project.autogenerate() == ("pass", "pass")
        project.down()
        assert names(engine, table) == [f"{table}_own_version"]

    def test_autogenerate_can_write_the_migration_itself(self, url, engine, table, tmp_path):
        project = Project(tmp_path / "p", url, table, "target_metadata")
        up, down = project.autogenerate()
        assert f"create_table('{table}'" in up
        assert f"drop_table('{table}')" in down
        project.up()
        assert check(url, table=table) == []
        assert project.autogenerate() == ("pass", "pass")


class TestAutogenerate:
    def test_wants_to_drop_the_tables_when_nobody_tells_it(self, url, engine, table):
        upgrade(url, table=table)
        dropped = {
            step[1].name for step in differences(engine, MetaData(), table) if step[0] == "remove_table"
        }
        assert sorted(dropped) == everything(table)

    def test_leaves_them_alone_with_the_hook(self, url, engine, table):
        upgrade(url, table=table)
        assert differences(engine, MetaData(), table, include_object=ignore_dedup_tables(table)) == []

    def test_leaves_them_alone_with_the_hook_and_the_metadata(self, url, engine, table):
        hook = ignore_dedup_tables(table)
        assert differences(engine, expected(table), table, include_object=hook) == []
        upgrade(url, table=table)
        assert differences(engine, expected(table), table, include_object=hook) == []

    def test_finds_them_equal_with_the_metadata(self, url, engine, table):
        with operations(engine):
            create_dedup_table(table=table)
            create_run_tables(table=table)
            create_outbox_tables(table=table)
        assert differences(engine, expected(table), table) == []

    def test_the_hook_asks_the_applications_own_about_the_rest(self, url, engine, table):
        upgrade(url, table=table)
        Table(f"{table}_x", MetaData(), Column("id", Integer)).create(engine)
        Table(f"{table}_y", MetaData(), Column("id", Integer)).create(engine)
        hook = ignore_dedup_tables(table, include_object=lambda _, name, *__: name != f"{table}_x")
        (step,) = differences(engine, MetaData(), table, include_object=hook)
        assert step[1].name == f"{table}_y"

    def test_the_hook_covers_the_default_table_or_the_ones_named(self):
        def kept(hook, name):
            return hook(Table(name, MetaData()), name, "table", True, None)

        default, two = ignore_dedup_tables(), ignore_dedup_tables("a", "b")
        assert [kept(default, name) for name in (*everything(DEFAULT_TABLE), "shop")] == [False] * 10 + [True]
        assert [kept(two, name) for name in ("a", "b_failures", DEFAULT_TABLE)] == [False, False, True]

    def test_the_hook_checks_names(self):
        with pytest.raises(ConfigurationError):
            ignore_dedup_tables("a.b")
