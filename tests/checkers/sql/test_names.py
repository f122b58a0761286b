"""A table's name may have capitals, be a reserved word, or a name that our statements use.

The statements quote it, and no table can have the names that they make themselves.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from idempotent import Message, Registry
from idempotent.admin import KeyFilter, Level
from idempotent.checkers import OffsetChecker, SqlChecker, TransactionalSqlChecker
from idempotent.errors import ConfigurationError
from idempotent.message import Position
from idempotent.migrations import check, downgrade, upgrade
from idempotent.schema import validate_table_name
from tests.support.tables import Tables

ROOT = Path(__file__).parents[3]
OF_STATEMENTS = (
    "idempotent/checkers/sql",
    "idempotent/stores/sql",
    "idempotent/outbox",
    "adapters/spark/ledger",
)
A_STATEMENT = re.compile(r"\b(SELECT|FROM|WITH|UPDATE|INSERT|DELETE|WHERE|JOIN|SET|AND|AS|ON)\b")
A_NAME = re.compile(
    r"\b(?:AS|FROM|JOIN|INTO|UPDATE|USING|WITH) ([a-z_][\w$]*)"
    r"|\b([a-z_][\w$]*)[.]|[,] ([a-z_][\w$]*)\(|[)}] ([a-z_][\w$]*)\b"
)


def names_in_statements():
    """The names that the text of our statements gives to what they read, or to parts of themselves."""
    names = set()
    for file in (file for folder in OF_STATEMENTS for file in (ROOT / folder).rglob("*.py")):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        constants = [
            node for node in nodes if isinstance(node, ast.Constant) and id(node) not in documentation
        ]
        texts = [node.value for node in constants if isinstance(node.value, str)]
        for text_ in filter(A_STATEMENT.search, texts):
            names.update(name for found in A_NAME.findall(text_) for name in found if name)
    return sorted(names)


@pytest.fixture(params=["order", "Dedup_Tbl", "user"])
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


def use_every_statement_over_keys(sql_store, table, kind):
    checker = kind(sql_store.engine(), table=table)
    sql_store.opened.callback(checker.close)
    messages = [Message("orders", id=str(number)) for number in range(3)]
    transactional = kind is TransactionalSqlChecker
    outcomes = two_runs(checker, takes=transactional, messages=messages)
    assert outcomes == ["processed", "duplicate", "processed", "failed", "dead"]
    received = [Message("orders", id="held", raw=object())]
    for outcome in ("failed", "in_progress"):  # held by its backoff
        assert two_runs(checker, takes=transactional, messages=received)[0] == outcome
    admin = checker.admin()
    assert sum(stats.count for stats in admin.stats()) == 4
    for record in list(admin.list(KeyFilter())):
        assert admin.reopen(record)
    assert checker.garbage_collect() == 0
    assert not [finding for finding in checker.findings() if finding.level is Level.ERROR]
    assert check(sql_store.url, table=table) == []


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", [SqlChecker, TransactionalSqlChecker])
def test_every_statement_over_keys_works(sql_store, table, kind):
    use_every_statement_over_keys(sql_store, table, kind)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", [SqlChecker, TransactionalSqlChecker])
def test_no_name_in_a_statement_can_be_that_of_a_table(sql_store, kind):
    valid = []
    for name in names_in_statements():
        try:
            valid.append(validate_table_name(name))
        except ConfigurationError:
            continue
    assert "fence" in valid
    for name in valid:
        tables = Tables(sql_store.admin_engine, name)
        tables.create()
        try:
            use_every_statement_over_keys(sql_store, name, kind)
        finally:
            sql_store.opened.close()
            tables.drop()


@pytest.mark.sample(3)
def test_every_statement_over_offsets_works(sql_store, table):
    checker = OffsetChecker(sql_store.engine(), table=table)
    sql_store.opened.callback(checker.close)
    messages = [Message("orders", position=Position("t", 0, number, number)) for number in range(3)]
    assert two_runs(checker, takes=True, messages=messages) == [
        *("processed", "duplicate", "processed"),
        *("failed", "dead"),
    ]
    assert checker.garbage_collect() == 0
