"""Migrations that run at the same time take turns."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, text

from idempotent.errors import StoreBusyError
from idempotent.migrations import check, create_dedup_table, current, store, upgrade
from idempotent.schema import version_name
from tests.migrations.support import SERVERS, python


@pytest.mark.slow
def test_two_processes_upgrade_one_after_the_other(url, engine, table):
    code = (
        "import sys; from idempotent.migrations import upgrade; print('ready', flush=True); "
        f"upgrade({url!r}, table={table!r})"
    )
    with store.exclusive(url, table):
        both = [python(code) for _ in range(2)]
        assert [process.stdout.readline() for process in both] == ["ready\n"] * 2
        time.sleep(0.5)
        waiting = [process.poll() is None for process in both]
    answers = [process.communicate(timeout=30)[1] for process in both]
    assert waiting == [True, True]
    assert answers == ["", ""]
    assert [process.returncode for process in both] == [0, 0]
    assert check(url, table=table) == []
    with engine.connect() as connection:
        assert connection.execute(text(f"SELECT version_num FROM {version_name(table)}")).all() == [("0001",)]


@pytest.mark.slow
def test_eight_threads_of_one_process_do_not_disturb_each_other(url, table):
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(upgrade, url, table=table) for _ in range(8)]:
            done.result()
    assert check(url, table=table) == []


@pytest.mark.parametrize(
    ("url", "level"),
    [
        ("mysql", "REPEATABLE READ"),
        ("postgres", "REPEATABLE READ"),
        ("mysql", "AUTOCOMMIT"),
        ("postgres", "AUTOCOMMIT"),
        ("sqlite", "AUTOCOMMIT"),
    ],
    indirect=["url"],
)
def test_whoever_waited_sees_what_the_other_made_at_any_isolation_level(url, table, level):
    engine = create_engine(url, isolation_level=level)
    with ThreadPoolExecutor() as pool:
        with store.exclusive(engine, table) as connection:
            waiting = pool.submit(upgrade, engine, table=table)
            time.sleep(0.5)
            assert not waiting.done()
            with Operations.context(MigrationContext.configure(connection)):
                create_dedup_table(table=table)
        waiting.result(timeout=30)
    engine.dispose()
    assert current(url, table=table) == "0001"
    assert check(url, table=table) == []


def test_a_migration_that_does_not_end_is_reported(url, table, monkeypatch):
    monkeypatch.setattr(store, "LOCK_TIMEOUT_S", 1)
    with store.exclusive(url, table), pytest.raises(StoreBusyError, match=f"{table}.*for 1 s"):
        upgrade(url, table=table)
    upgrade(url, table=table)


def test_sqlite_gets_its_own_busy_timeout_back(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/m.db?timeout=0.7")
    upgrade(engine)
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA busy_timeout")).scalar() == 700
    engine.dispose()


@pytest.mark.parametrize("url", SERVERS, indirect=True)
def test_another_table_does_not_wait(url, table):
    with store.exclusive(url, f"{table}_b"):
        upgrade(url, table=table)


def test_a_failure_gives_the_lock_back_to_a_pooled_connection(engine, table):
    with pytest.raises(ZeroDivisionError), store.exclusive(engine, table):
        raise ZeroDivisionError
    other = create_engine(engine.url)
    upgrade(other, table=table)
    other.dispose()
