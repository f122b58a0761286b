"""Rounds of several threads, tasks and processes over the same keys: each key is acquired once."""

from __future__ import annotations

from collections import Counter

import pytest
import sqlalchemy as sa

from idempotent.claims import Verdict
from idempotent.migrations import upgrade
from tests.checkers.batching.child import in_tasks, in_threads
from tests.checkers.batching.rounds import Calls, request
from tests.support.forked import Forked
from tests.support.stores import Store

DEADLOCKS = {
    "mysql": "SELECT count FROM information_schema.INNODB_METRICS WHERE name = 'lock_deadlocks'",
    "postgres": "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()",
}


def test_64_threads_over_few_keys_acquire_each_once_and_see_every_duplicate(shared_store):
    checker, calls = shared_store.leased(), Calls()
    # Lists, because threads lose some of what they add to a number.
    acquired: list[str] = []
    seen: list[Verdict] = []

    def work():
        for number in range(8):
            decision = checker.lone.claim(request(f"m{number}"))
            while decision.verdict is Verdict.IN_PROGRESS:
                decision = checker.lone.claim(request(f"m{number}"))
            seen.append(decision.verdict)
            if decision.claim is not None:
                acquired.append(f"m{number}")
                assert checker.lone.complete(decision.claim)

    for number in range(64):
        calls.start(f"{number}", work)
    assert set(calls.join().values()) == {None}
    assert sorted(acquired) == [f"m{number}" for number in range(8)]
    assert Counter(seen) == {Verdict.ACQUIRED: 8, Verdict.DUPLICATE: 63 * 8}


def race(store, tmp_path, function, *arguments, processes):
    children = [
        Forked(function, store.url, store.table, *arguments, folder=tmp_path) for _ in range(processes)
    ]
    try:
        codes = [child.wait(60) for child in children]
        assert codes == [0] * processes, [child.err for child in children]
    finally:
        for child in children:
            child.close()
    return Counter(name for child in children for name in child.out.decode().split())


def test_500_tasks_in_4_processes_acquire_each_of_1000_keys_once(shared_store, tmp_path):
    keys = 300 if shared_store.kind == "sqlite" else 1000
    acquired = race(shared_store, tmp_path, in_tasks, 125, keys, processes=4)
    assert acquired == Counter({f"m{number}": 1 for number in range(keys)})


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_rounds_of_three_processes_do_not_deadlock(request, tmp_path, kind):
    """On a server of their own: InnoDB counts those of all databases, and other tests make some."""
    server = request.getfixturevalue({"mysql": "private_mariadb", "postgres": "private_postgres"}[kind])()
    store = Store(kind, server.url)
    upgrade(server.url, table=store.table)
    with store.opened:

        def deadlocks():
            with store.admin_engine.connect() as connection:
                return connection.execute(sa.text(DEADLOCKS[kind])).scalar()

        before = deadlocks()
        acquired = race(store, tmp_path, in_threads, 32, 1500, processes=3)
        assert acquired == Counter({f"m{number}": 1 for number in range(1500)})
        assert deadlocks() == before
