"""`upgrade`, `downgrade` and `current`."""

import logging
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.exc import OperationalError

from idempotent import migrations
from idempotent.errors import ConfigurationError
from idempotent.migrations import check, current, downgrade, upgrade
from idempotent.migrations.versions import r0001_create_tables as initial
from idempotent.schema import failures_name, version_name
from tests.migrations.support import (
    TRANSACTIONAL_DDL,
    add_key,
    all_tables,
    differences,
    everything,
    expected,
    names,
    python,
    rows,
)


class TestUpgrade:
    def test_makes_exactly_what_the_schema_says(self, url, engine, table):
        upgrade(url, table=table)
        assert names(engine, table) == everything(table)
        assert check(url, table=table) == []
        assert [
            step
            for step in differences(engine, expected(table), table)
            if version_name(table) not in repr(step)
        ] == []

    def test_notes_its_revision(self, url, table):
        assert current(url, table=table) is None
        upgrade(url, table=table)
        assert current(url, table=table) == "0001"

    def test_a_second_time_keeps_the_keys(self, url, engine, table):
        upgrade(url, table=table)
        add_key(engine, table)
        upgrade(url, table=table)
        assert rows(engine, table) == 1

    def test_takes_an_engine_too_and_leaves_its_connection_as_it_was(self, engine, table):
        with engine.connect() as connection:
            before = connection.get_isolation_level()
        upgrade(engine, table=table)
        with engine.connect() as connection:
            assert connection.get_isolation_level() == before
        assert check(engine, table=table) == []

    def test_two_tables_live_side_by_side(self, url, engine, table):
        other = f"{table}_b"
        upgrade(url, table=table)
        upgrade(url, table=other)
        downgrade(url, table=table)
        assert names(engine, table) == everything(other)
        assert check(url, table=other) == []

    def test_a_reserved_word_is_a_name(self, url, engine):
        upgrade(url, table="select")
        assert check(url, table="select") == []
        downgrade(url, table="select")
        assert names(engine, "select") == []

    def test_upper_and_lower_case_make_a_name(self, url, engine):
        upgrade(url, table="MixedCase")
        assert check(url, table="MixedCase") == []
        downgrade(url, table="MixedCase")

    @pytest.mark.parametrize("suffix", ["", "_run_claims"])
    def test_finishes_what_a_killed_run_began(self, url, engine, table, suffix):
        """Killed when it had made a table and not its index."""
        made = expected(table).tables
        for name in all_tables(table)[: all_tables(table).index(f"{table}{suffix}") + 1]:
            made[name].create(engine)
        next(iter(made[f"{table}{suffix}"].indexes)).drop(engine)
        add_key(engine, table)
        upgrade(url, table=table)
        assert check(url, table=table) == []
        assert current(url, table=table) == "0001"
        assert rows(engine, table) == 1

    @pytest.mark.parametrize("url", TRANSACTIONAL_DDL, indirect=True)
    def test_an_error_inside_leaves_nothing_where_ddl_is_transactional(self, engine, table):
        event.listen(engine, "before_cursor_execute", _fail_on_version_insert)
        with pytest.raises(ZeroDivisionError):
            upgrade(engine, table=table)
        event.remove(engine, "before_cursor_execute", _fail_on_version_insert)
        assert names(engine, table) == []
        upgrade(engine, table=table)

    def test_an_invalid_name_is_refused_before_connecting(self):
        for function in (upgrade, downgrade, current, check):
            with pytest.raises(ConfigurationError, match="invalid table name"):
                function("sqlite:////nonexistent/folder/x.db", table="a; drop table b")

    def test_an_unknown_revision_is_refused_with_the_known_ones(self, url, engine, table):
        with pytest.raises(ConfigurationError, match=r"'0009'.*head, 0001"):
            upgrade(url, table=table, revision="0009")
        with pytest.raises(ConfigurationError, match=r"'-1'.*base, 0001"):
            downgrade(url, table=table, revision="-1")
        assert names(engine, table) == []

    def test_an_unreachable_store_keeps_its_own_error(self):
        with pytest.raises(OperationalError):
            upgrade("sqlite:////nonexistent/folder/x.db")

    def test_a_database_without_migrations_is_named(self):
        engine = create_engine("sqlite://")
        engine.dialect.name = "oracle"
        with pytest.raises(ConfigurationError, match="no migrations for 'oracle'"):
            upgrade(engine)

    def test_an_engine_that_says_begin_itself_works(self, tmp_path):
        engine = create_engine(f"sqlite:///{tmp_path}/m.db")

        @event.listens_for(engine, "connect")
        def _manual(connection, _):
            connection.isolation_level = None

        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        upgrade(engine)
        with engine.connect() as connection:
            assert connection.connection.dbapi_connection.isolation_level is None
        assert check(engine) == []
        engine.dispose()

    def test_logging_of_the_application_stays_as_it_was(self, tmp_path):
        before = (logging.root.handlers[:], logging.root.level, logging.getLogger("shop").disabled)
        upgrade(f"sqlite:///{tmp_path}/m.db")
        after = (logging.root.handlers[:], logging.root.level, logging.getLogger("shop").disabled)
        assert after == before


@pytest.mark.sample(3)
class TestDowngrade:
    def test_removes_everything(self, url, engine, table):
        upgrade(url, table=table)
        downgrade(url, table=table)
        assert names(engine, table) == []
        assert current(url, table=table) is None

    def test_and_up_again(self, url, table):
        upgrade(url, table=table)
        downgrade(url, table=table)
        upgrade(url, table=table)
        assert check(url, table=table) == []

    def test_to_the_revision_it_is_at_changes_nothing(self, url, engine, table):
        upgrade(url, table=table)
        downgrade(url, table=table, revision="0001")
        assert names(engine, table) == everything(table)

    def test_leaves_tables_alone_that_no_upgrade_noted(self, url, engine, table):
        expected(table).create_all(engine)
        downgrade(url, table=table)
        assert names(engine, table) == sorted(all_tables(table))

    def test_survives_a_table_dropped_by_hand(self, url, engine, table):
        upgrade(url, table=table)
        expected(table).tables[failures_name(table)].drop(engine)
        downgrade(url, table=table)
        assert names(engine, table) == []


def _fail_on_version_insert(connection, cursor, statement, *_):
    if statement.startswith("INSERT"):
        raise ZeroDivisionError


def test_importing_the_migrations_imports_no_driver():
    code = (
        "import sys, idempotent.migrations; "
        "print([name for name in ('pymysql', 'psycopg', 'redis', 'typer') if name in sys.modules])"
    )
    out, err = python(code).communicate(timeout=30)
    assert (out, err) == ("[]\n", "")


def test_the_public_names_are_the_documented_ones():
    assert sorted(migrations.__all__) == migrations.__all__
    docs = Path(__file__).parents[2] / "docs"
    pages = "".join((docs / name).read_text() for name in ("migrations.md", "reference/tables.md"))
    assert [name for name in migrations.__all__ if name not in pages] == []


def test_a_released_revision_does_not_use_the_schema_of_today():
    assert "idempotent" not in Path(initial.__file__).read_text()
    assert sorted(initial.tables("t").tables) == sorted(all_tables("t"))
