"""Commands whose table another session has locked."""

from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from idempotent.migrations import upgrade
from idempotent.stores.sql import answers

pytestmark = pytest.mark.parametrize("sql_store", ["postgres", "mysql"], indirect=True)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(answers, "LOCK_WAIT_S", 1)


@contextmanager
def locked(store, *suffixes):
    with store.admin_engine.begin() as connection:
        if store.kind == "mysql":
            names = ", ".join(f"{store.table}{suffix} WRITE" for suffix in suffixes)
            connection.execute(sa.text(f"LOCK TABLES {names}"))
        else:
            names = ", ".join(f"{store.table}{suffix}" for suffix in suffixes)
            connection.execute(sa.text(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE"))
        try:
            yield
        finally:
            if store.kind == "mysql":
                connection.execute(sa.text("UNLOCK TABLES"))


def at(store):
    return ["--url", store.url, "--table", store.table]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["outbox", "stats"], ["outbox", "list"], ["relay", "--broker", "amqp://127.0.0.1:1"]]
)
def test_a_locked_outbox_is_busy(cli, outbox, sql_store, words):
    with locked(sql_store, "_outbox"):
        answer = cli(*words, *at(sql_store))
    assert answer.code == 4
    assert "Store busy" in answer.err


@pytest.mark.slow
def test_doctor_says_that_a_table_is_locked(cli, outbox, sql_store):
    with locked(sql_store, ""):
        answer = cli("doctor", *at(sql_store), "--json")
    assert answer.code == 4
    assert "is busy" in answer.lines[-1]["what"]


def test_the_revision_is_not_waited_for(cli, sql_store):
    upgrade(sql_store.url, table=sql_store.table)
    with locked(sql_store, "_alembic_version"):
        answer = cli("migrate", "current", *at(sql_store))
    assert answer.code == 4
    assert "Store busy" in answer.err


def test_the_url_may_say_how_long_to_wait(sql_store):
    url = sa.make_url(sql_store.url)
    if sql_store.kind == "postgres":
        url, question = url.update_query_dict({"options": "-clock_timeout=7s"}), "SHOW lock_timeout"
    else:
        own = {"init_command": "SET SESSION lock_wait_timeout=7"}
        url, question = url.update_query_dict(own), "SELECT CONCAT(@@lock_wait_timeout, 's')"
    engine = sa.create_engine(url)
    answers.limit_answers(engine, 30)
    with engine.connect() as connection:
        assert connection.scalar(sa.text(question)) == "7s"
    engine.dispose()
