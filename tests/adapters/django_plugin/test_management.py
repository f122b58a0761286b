"""The migration and the commands of `python manage.py`, and Django's own test runner."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO

import pytest
import sqlalchemy as sa
from django.core.management import CommandError, call_command
from django.db import connections

from idempotent import idempotent
from idempotent.adapters.django import DjangoChecker
from idempotent.checkers import SqlChecker
from idempotent.checkers.pauses import Pauses, pause_of
from idempotent.claims import KeyStatus
from idempotent.errors import DeadKeyError
from idempotent.keys import KeySpace
from idempotent.migrations.drift import compare
from idempotent.schema import DEFAULT_TABLE, dedup_tables
from tests.adapters.django_plugin.project import write
from tests.project.house import ROOT
from tests.support.ageing import age_tables


def run(command: str, *words: str, **options: object) -> str:
    out = StringIO()
    call_command(command, *words, stdout=out, **options)
    return out.getvalue()


@pytest.fixture
def engine(url):
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


def differences(engine):
    metadata = sa.MetaData()
    dedup_tables(metadata)
    with engine.connect() as connection:
        return compare(connection, metadata)


def test_the_migration_makes_the_tables_of_the_checkers(engine, alias):
    assert differences(engine) == []
    if alias == "postgres":
        with engine.connect() as connection:
            options = connection.scalar(
                sa.text(f"SELECT reloptions FROM pg_class WHERE relname = '{DEFAULT_TABLE}'")
            )
        assert options == ["fillfactor=70"]


def test_it_makes_what_is_missing_and_removes_all(engine, alias):
    run("migrate", "idempotent", "zero", database=alias, verbosity=0)
    assert not set(sa.inspect(engine).get_table_names()) & {DEFAULT_TABLE, f"{DEFAULT_TABLE}_failures"}
    assert "CREATE TABLE" in run("sqlmigrate", "idempotent", "0001", database=alias)
    metadata = sa.MetaData()
    tables = dedup_tables(metadata)
    tables.keys.indexes.clear()  # a migration of MySQL that was killed
    with engine.begin() as connection:
        connection.execute(sa.schema.CreateTable(tables.keys))
    run("migrate", "idempotent", database=alias, verbosity=0)
    assert differences(engine) == []
    assert "No changes" in run("makemigrations", "idempotent", "--check", "--dry-run")


def test_other_checkers_and_the_admin_see_the_keys(alias, url):
    charge = idempotent(DjangoChecker(alias), group="tests", key="order", name="charge")(lambda order: order)
    charge("a")
    checker = SqlChecker(url)
    record = checker.admin().get(KeySpace("charge", "tests").key("a"))
    assert record is not None
    assert record.status is KeyStatus.DONE
    again = idempotent(checker, group="tests", key="order", name="charge")(lambda order: "again")
    assert again("a") == "a"
    checker.close()


def test_a_command_pauses_its_consumers_and_so_does_the_checker_itself(alias, url):
    mine, other = DjangoChecker(alias), SqlChecker(url)
    for pausing, asked in ((other, mine), (mine, other)):
        assert Pauses(pausing).pause("orders:billing", by="anna", note="OPS-12")[1]
        pause = pause_of(asked, "orders:billing")
        assert pause is not None
        assert (pause.by, pause.note) == ("anna", "OPS-12")
        assert run("idempotent_gc", database=alias) == "0 expired keys deleted\n"
        assert Pauses(asked).resume("orders:billing")
        assert pause_of(pausing, "orders:billing") is None
    other.close()


def test_gc_deletes_what_has_expired(alias, engine):
    charge = idempotent(DjangoChecker(alias, retention_s=3600), group="tests", key="order", name="charge")(
        lambda order: write(alias, order)
    )
    charge("a")
    assert run("idempotent_gc", database=alias) == "0 expired keys deleted\n"
    age_tables(engine, DEFAULT_TABLE, 3601)
    assert run("idempotent_gc", "--batch-size=10", database=alias) == "1 expired keys deleted\n"
    assert run("idempotent_keys", database=alias) == ""


@pytest.fixture
def dead(alias):
    """A function whose key `a` is dead, and `b` done."""

    def charge(order: str) -> str:
        if order == "a" and not mended:
            raise ZeroDivisionError
        return order

    mended: list[bool] = []
    made = idempotent(
        DjangoChecker(alias), group="tests", key="order", name="charge", dead_for=ZeroDivisionError
    )(charge)
    made("b")
    with pytest.raises(ZeroDivisionError):
        made("a")
    mended.append(True)
    return made


def test_a_person_lists_keys_and_decides(alias, dead):
    listed = run("idempotent_keys", database=alias).splitlines()
    assert sorted(line.split("  ")[1:3] for line in listed) == [
        ["DEAD", "charge:tests:a"],
        ["DONE", "charge:tests:b"],
    ]
    (line,) = run("idempotent_keys", "--dead", database=alias).splitlines()
    assert "1 attempts: ZeroDivisionError" in line
    assert run("idempotent_keys", "charge:tests:a", database=alias).strip() == line
    with pytest.raises(DeadKeyError):
        dead("a")
    by_hash = line.split("  ")[0]
    assert "runs again" in run("idempotent_keys", by_hash, "--retry", database=alias)
    assert dead("a") == "a"


def test_a_person_marks_a_key_done(alias, dead):
    assert "is done" in run("idempotent_keys", "charge:tests:a", "--done", database=alias)
    with pytest.raises(CommandError, match="left alone"):
        run("idempotent_keys", "charge:tests:a", "--done", database=alias)
    assert run("idempotent_keys", "--dead", database=alias) == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("charge:tests:a", "--retry", "--done"), "exclude"),
        (("--retry",), "need a KEY"),
        (("nothing",), "is not a key"),
        (("charge:tests:z",), "is not stored"),
    ],
)
def test_a_wrong_command_is_refused(postgres, words, says):
    with pytest.raises(CommandError, match=says):
        run("idempotent_keys", *words, database=postgres)


@pytest.mark.parametrize("command", ["idempotent_gc", "idempotent_keys"])
def test_a_database_that_is_not_in_the_settings_is_refused(postgres, command):
    with pytest.raises(CommandError, match=r"--database: invalid choice: 'nope'"):
        run(command, "--database=nope")


def test_a_missing_table_is_named(postgres):
    with connections[postgres].cursor() as cursor:
        cursor.execute("ALTER TABLE deduplicate_tbl RENAME TO elsewhere")
    try:
        for command in ("idempotent_gc", "idempotent_keys"):
            with pytest.raises(CommandError, match="migrate --database"):
                run(command, database=postgres)
    finally:
        with connections[postgres].cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO deduplicate_tbl")


@pytest.mark.slow
def test_django_s_own_test_runner_finds_the_tables_and_undoes_each_test(postgres_project):
    """In a process of its own: the runner makes and drops a database, which no connection of ours may keep open."""
    words = [sys.executable, "-m", "tests.adapters.django_plugin.runner", postgres_project]
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ, check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "Ran 3 tests" in done.stderr
