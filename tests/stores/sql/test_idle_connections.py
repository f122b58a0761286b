"""The engine's pool_size, pool_recycle and dispose() apply to a checker's own connections, too."""

from __future__ import annotations

import sqlite3
import sys
import threading
import time

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from idempotent.checkers.sql.transactions import HandlerTransactions
from idempotent.errors import StoreUnavailableError
from idempotent.stores.sql.connections import Connections
from idempotent.stores.sql.cursor import query
from idempotent.stores.sql.detached import DetachedConnections
from tests.checkers.sql.booking import consumer_of, messages


@pytest.fixture(params=[True, False], ids=["autocommit", "transaction"])
def detached(request, sql_store):
    """`detached(pool_size=...)`: the connections of a new engine."""
    made = []

    def make(**options):
        made.append(DetachedConnections(sql_store.engine(**options), autocommit=request.param))
        return made[-1], made[-1]._engine

    yield make
    for connections in made:
        connections.close()


def is_open(connection):
    return not connection.connection.closed and not connection.connection.invalidated


def burst(connections, number):
    taken = [connections.take() for _ in range(number)]
    for each in taken:
        connections.put(each)
    return taken


@pytest.mark.parametrize(
    ("options", "kept"), [({}, 5), ({"pool_size": 2}, 2), ({"poolclass": sa.NullPool}, 0)]
)
def test_after_a_burst_as_many_stay_as_the_engines_pool_keeps(detached, options, kept):
    connections, _ = detached(**options)
    taken = burst(connections, 8)
    assert sum(map(is_open, taken)) == kept


def test_a_pool_without_a_limit_keeps_all(detached):
    connections, _ = detached(pool_size=0)
    assert all(map(is_open, burst(connections, 8)))


def test_the_most_recently_used_one_is_taken_again(detached):
    connections, _ = detached()
    taken = burst(connections, 2)
    again = connections.take()
    assert again is taken[-1]
    connections.put(again)


def test_a_connection_older_than_pool_recycle_is_replaced(detached):
    connections, _ = detached(pool_recycle=0.2)
    first = connections.take()
    connections.put(first)
    assert connections.take() is first
    connections.put(first)
    time.sleep(0.3)
    second = connections.take()
    assert second is not first
    assert not is_open(first)
    connections.put(second)


def test_dispose_closes_the_idle_ones_at_once_and_those_in_use_when_they_come_back(detached):
    connections, engine = detached()
    idle, used = connections.take(), connections.take()
    connections.put(idle)
    engine.dispose()
    assert not is_open(idle)
    assert is_open(used)
    connections.put(used)
    assert not is_open(used)
    another = connections.take()
    assert is_open(another)
    connections.put(another)


@pytest.mark.parametrize("sql_store", ["sqlite"], indirect=True)
def test_none_that_comes_back_while_the_idle_ones_are_closed_stays_open(detached):
    """Nobody would ever close it: the checker is closed."""
    connections, _ = detached()
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(1000):
            used = connections.take()
            comes_back = threading.Thread(target=connections.put, args=(used,))
            comes_back.start()
            connections.close()
            comes_back.join()
            assert not is_open(used)
    finally:
        sys.setswitchinterval(interval_s)


def test_listening_for_dispose_does_not_slow_the_applications_statements(sql_store):
    engine = sql_store.engine()
    DetachedConnections(engine, autocommit=True)
    with engine.connect() as connection:
        assert not connection._has_events
        assert not engine._has_events


def test_thirty_threads_at_once_leave_no_more_than_the_pool_would(sql_store):
    if sql_store.kind == "sqlite":
        pytest.skip("one writer at a time")
    engine = sql_store.engine(pool_size=3)
    checker = sql_store.transactional(engine)
    start = threading.Barrier(30)

    def run(number):
        start.wait()
        consumer.process(messages(str(number))[0])

    consumer = consumer_of(sql_store, checker, lambda *_: time.sleep(0.1))
    threads = [threading.Thread(target=run, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sql_store.booked()) == 30
    idle = [
        part._connections._idle if isinstance(part, HandlerTransactions) else part._own._idle
        for part in (checker._transactions, checker.store.connections)
    ]
    assert [len(each) for each in idle] <= [3, 3]
    engine.dispose()
    assert [len(each) for each in idle] == [0, 0]


def test_a_checker_works_on_after_dispose(sql_store):
    engine = sql_store.engine()
    consumer = consumer_of(sql_store, sql_store.transactional(engine))
    for number in ("1", "2"):
        assert consumer.process(messages(number)[0]).outcome.value == "processed"
        engine.dispose()
    assert sql_store.booked() == {"1": 1, "2": 1}


def test_a_closed_pool_of_another_engine_closes_nothing(sql_store):
    mine, other = sql_store.engine(), sql_store.engine()
    connections = Connections(mine, sql_store.table)
    connections.run(lambda _: None)
    other.dispose()
    assert len(connections._own._idle) == 1
    connections.close()


def test_an_answer_that_was_lost_stays_lost_if_no_connection_follows(tmp_path):
    """Whether the statement was carried out is unknown, whatever the next connection says."""
    opened = []

    def open_once():
        if opened:
            raise sqlite3.OperationalError("no such table: keys")
        opened.append(sqlite3.connect(tmp_path / "keys.db", check_same_thread=False))
        return opened[0]

    def lose(driver):
        opened[0].close()
        query(driver, "SELECT 1")

    connections = Connections(sa.create_engine("sqlite://", creator=open_once, poolclass=NullPool), "keys")
    with pytest.raises(StoreUnavailableError, match="closed database"):
        connections.run(lose)
