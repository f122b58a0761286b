"""A table's name may have capitals or be a reserved word: the statements quote it, as the migrations do."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from idempotent import Message, Registry
from idempotent.admin import KeyFilter, Level
from idempotent.checkers import OffsetChecker, SqlChecker, TransactionalSqlChecker
from idempotent.message import Position
from idempotent.migrations import check, downgrade, upgrade

pytestmark = pytest.mark.sample(3)

NAMES = ["order", "Dedup_Tbl", "user"]


@pytest.fixture(params=NAMES)
def table(request, sql_store):
    upgrade(sql_store.url, table=request.param)
    yield request.param
    downgrade(sql_store.url, table=request.param)


def two_runs(checker, *, takes, messages):
    """The outcomes of messages and of their redeliveries, one by one and in a group; the last one fails."""

    def handle(message):
        if message == messages[-1]:
            raise ValueError("no")

    if takes:

        def in_session(message, session: Session):
            session.execute(text("SELECT 1"))
            handle(message)

    consumer = Registry().consumer("orders", group="billing", checker=checker, max_attempts=2)(
        in_session if takes else handle
    )
    if checker.remembers.by_position:
        checker.begin({consumer.binding.requests.partition("t", 0): 0})
    first = [consumer.process(messages[0]), *consumer.process_many(messages)]
    return [result.outcome.value for result in (*first, consumer.process(messages[-1]))]


@pytest.mark.parametrize("kind", [SqlChecker, TransactionalSqlChecker])
def test_every_statement_over_keys_works(sql_store, table, kind):
    checker = kind(sql_store.engine(), table=table)
    sql_store.opened.callback(checker.close)
    messages = [Message("orders", id=str(number)) for number in range(3)]
    transactional = kind is TransactionalSqlChecker
    outcomes = two_runs(checker, takes=transactional, messages=messages)
    assert outcomes == ["processed", "duplicate", "processed", "failed", "dead"]
    admin = checker.admin()
    assert sum(stats.count for stats in admin.stats()) == 3
    for record in list(admin.list(KeyFilter())):
        assert admin.reopen(record)
    assert checker.garbage_collect() == 0
    assert not [finding for finding in checker.findings() if finding.level is Level.ERROR]
    assert check(sql_store.url, table=table) == []


def test_every_statement_over_offsets_works(sql_store, table):
    checker = OffsetChecker(sql_store.engine(), table=table)
    sql_store.opened.callback(checker.close)
    messages = [Message("orders", position=Position("t", 0, number, number)) for number in range(3)]
    assert two_runs(checker, takes=True, messages=messages) == [
        *("processed", "duplicate", "processed"),
        *("failed", "dead"),
    ]
    assert checker.garbage_collect() == 0
