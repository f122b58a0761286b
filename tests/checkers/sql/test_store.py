"""Whose engine it is decides who disposes of it."""

import pytest
import sqlalchemy as sa

from idempotent.checkers import SqlChecker, TransactionalSqlChecker


@pytest.mark.parametrize("kind", [SqlChecker, TransactionalSqlChecker])
def test_a_checker_disposes_of_the_engine_that_it_made(sql_store, kind):
    checker = kind(sql_store.url, table=sql_store.table)
    pool = checker.store.engine.pool
    assert checker.findings()
    assert pool.checkedin() == 1
    checker.close()
    assert pool.checkedin() == 0


@pytest.mark.parametrize("kind", [SqlChecker, TransactionalSqlChecker])
def test_a_checker_leaves_the_applications_engine_open(sql_store, kind):
    engine = sql_store.engine()
    assert isinstance(engine.pool, sa.QueuePool)
    checker = kind(engine, table=sql_store.table)
    checker.findings()
    checker.close()
    assert engine.pool.checkedin() == 1
