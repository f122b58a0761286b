"""PgBouncer in transaction mode: each transaction may run on another session of the server."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from idempotent import Message, Outcome, Registry
from idempotent.adapters.spark.ledger import StoreConfig, open_ledger
from idempotent.adapters.spark.ledger.run_claims import RowVerdict, RunClaims
from idempotent.checkers import SqlChecker, TransactionalSqlChecker
from idempotent.errors import ConfigurationError
from idempotent.migrations import upgrade
from tests.support.stores import open_store

TASKS, EACH = 8, 12
UNPREPARED = {"prepare_threshold": "None"}


@pytest.fixture
def store(request):
    yield from open_store("postgres", request)


@pytest.fixture
def pooled(store, private_pgbouncer):
    """The URL of the store's database through PgBouncer."""
    yield sa.make_url(private_pgbouncer(store.url).url)
    store.opened.close()


def leased(store, checker):
    def handle(message: Message) -> None:
        with store.admin_engine.begin() as connection:
            connection.execute(store.effects.insert().values(id=message.id))

    return Registry().consumer("orders", checker=checker)(handle)


def transactional(store, checker):
    def handle(message: Message, session: Session) -> None:
        for _ in range(7):  # psycopg prepares what it executes for the sixth time
            session.execute(sa.select(sa.func.count()).select_from(store.effects))
        session.execute(store.effects.insert().values(id=message.id))

    return Registry().consumer("orders", checker=checker)(handle)


def awaiting(store, checker):
    async def handle(message: Message, session: AsyncSession) -> None:
        await session.execute(store.effects.insert().values(id=message.id))

    return Registry().consumer("orders", checker=checker)(handle)


def of(task):
    return [Message("orders", id=f"{task}-{number}") for number in range(EACH)]


def in_threads(consumer):
    def process(task):
        return [consumer.process(message) for message in of(task)]

    with ThreadPoolExecutor(TASKS) as pool:
        return [result for results in pool.map(process, range(TASKS)) for result in results]


def in_tasks(consumer):
    async def process(task):
        return [await consumer.process(message) for message in of(task)]

    async def main():
        return [each for part in await asyncio.gather(*map(process, range(TASKS))) for each in part]

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("make", "consumer_of", "run", "driver"),
    [
        (SqlChecker, leased, in_threads, "postgresql+psycopg"),
        (TransactionalSqlChecker, transactional, in_threads, "postgresql+psycopg"),
        (TransactionalSqlChecker, awaiting, in_tasks, "postgresql+psycopg_async"),
    ],
    ids=["leased", "transactional", "async"],
)
def test_all_is_processed_if_the_url_says_that_nothing_is_prepared(
    store, pooled, make, consumer_of, run, driver
):
    url = pooled.set(drivername=driver).update_query_dict(UNPREPARED)
    checker = make(url, table=store.table)
    store.opened.callback(checker.close)
    results = run(consumer_of(store, checker))
    assert [result.error for result in results if result.outcome is not Outcome.PROCESSED] == []
    assert store.booked() == {message.id: 1 for task in range(TASKS) for message in of(task)}


@pytest.mark.parametrize("make", [SqlChecker, TransactionalSqlChecker])
def test_otherwise_the_error_says_what_to_write(store, pooled, make):
    # Without its own combining, threads have connections of their own.
    checker = make(pooled, table=store.table, **({"combine": False} if make is SqlChecker else {}))
    store.opened.callback(checker.close)
    consumer = (leased if make is SqlChecker else transactional)(store, checker)
    results = [result for _ in range(5) for result in in_threads(consumer)]
    errors = [str(result.error) for result in results if result.error]
    assert errors, "PgBouncer gave each client a session of its own"
    assert any("?prepare_threshold=None" in error and "PgBouncer" in error for error in errors), errors[:3]
    if make is TransactionalSqlChecker:  # a statement of the handler is no failure of the handler either
        assert Outcome.FAILED not in {result.outcome for result in results}


def test_a_session_that_a_handler_has_changed_misleads_no_other_client(store, pooled):
    url = pooled.update_query_dict(UNPREPARED)
    checkers = [make(url, table=store.table) for make in (TransactionalSqlChecker, SqlChecker)]
    checkers[1].ping()
    late = SqlChecker(url, table=store.table, schema="public")  # connects first when sessions are changed

    def change(message: Message, session: Session) -> None:
        session.execute(sa.text("SET search_path TO pg_catalog"))

    changing = Registry().consumer("tenants", checker=checkers[0])(change)
    for checker in (*checkers, late):
        store.opened.callback(checker.close)
        results = [each for _ in range(2) for each in in_threads(changing)]
        assert {result.outcome for result in results} <= {Outcome.PROCESSED, Outcome.DUPLICATE}, results
        if checker is not checkers[0]:
            in_threads(leased(store, checker))
    assert store.booked() == {message.id: 1 for task in range(TASKS) for message in of(task)}


def test_a_spark_ledger_takes_it_in_its_url(store, pooled):
    upgrade(store.url, table=f"{store.table}_s")
    url = pooled.update_query_dict(UNPREPARED).render_as_string(hide_password=False)
    with open_ledger(StoreConfig(url, table=f"{store.table}_s")) as ledger:
        claims = RunClaims(ledger, ledger.begin("orders", "r1", lease_s=60).ref)
        keys = [number.to_bytes(20, "big") for number in range(20)]
        assert [claims.decide([key]) for key in keys] == [[RowVerdict.NEW]] * 20


@pytest.mark.parametrize("wrong", ["soon", "-1", "1.5"])
def test_another_value_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="prepare_threshold must be a number of executions, or None"):
        SqlChecker(f"postgresql+psycopg://h/db?prepare_threshold={wrong}")
