"""A process that is killed in a protected function: what its next call finds, in another process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import DeadKeyError, current_claim, idempotent
from idempotent.checkers import RedisChecker, SqlChecker, TransactionalSqlChecker
from tests.support.stores import Store, open_store

pytestmark = pytest.mark.slow
LEASE_S = 3.0


opened: list[Any] = []


def checker_of(url: str, table: str, *, is_transactional: bool = False) -> Any:
    if is_transactional:
        opened.append(TransactionalSqlChecker(url, table=table))
    elif url.startswith("redis"):
        opened.append(RedisChecker(url, prefix=f"{table}:", lease_s=LEASE_S))
    else:
        opened.append(SqlChecker(url, table=table, lease_s=LEASE_S))
    return opened[-1]


def leased(url: str, table: str, **options: Any) -> Any:
    """A function that says its token, and then ends or goes on."""

    @idempotent(checker_of(url, table), group="tests", key="order", name="charge", **options)
    def charge(order: str, *, dies: bool = False) -> str:
        token = current_claim().key.token
        sys.stdout.write(f"{token}\n")
        sys.stdout.flush()
        if dies:
            time.sleep(60)
        return token

    return charge


def transactional(url: str, table: str) -> Any:
    """A function whose effect is in the database of its key."""

    checker = checker_of(url, table, is_transactional=True)

    @idempotent(checker, group="tests", key="order", name="book", wait_s=30)
    def book(order: str, session: Session, *, dies: bool = False) -> str:
        session.execute(sa.text(f"INSERT INTO {table}_effects (id) VALUES (:id)"), {"id": order})
        sys.stdout.write("written\n")
        sys.stdout.flush()
        if dies:
            time.sleep(60)
        return order

    return book


@pytest.fixture(params=["postgres", "mysql", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with contextmanager(open_store)(request.param, request, reuse=True) as store:
        yield store
        while opened:
            opened.pop().close()


def killed_in(call: str) -> str:
    """Run a call in another process, kill it when it says something, and return what it said."""
    program = f"from tests.functions.test_kills import leased, transactional\n{call}"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = child.stdout.readline().strip()
        child.kill()
    assert said
    return said


def test_with_leases_it_runs_again_with_the_same_token(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    token = killed_in(f"leased({store.url!r}, {store.table!r})('a', dies=True)")
    again = leased(store.url, store.table, wait_s=60)
    assert again("a") == token
    assert again("a") == token
    assert capsys.readouterr().out.split() == [token]


def test_with_leases_and_park_nobody_runs_it_again(store: Store) -> None:
    killed_in(f"leased({store.url!r}, {store.table!r}, on_expired_lease='park')('a', dies=True)")
    with pytest.raises(DeadKeyError, match="effect unknown"):
        leased(store.url, store.table, wait_s=60, on_expired_lease="park")("a")


def test_with_a_transaction_the_effect_happens_once(store: Store) -> None:
    if store.kind == "redis":
        pytest.skip("it has no transactions for effects")
    assert store.booked() == {}
    killed_in(f"transactional({store.url!r}, {store.table!r})('a', dies=True)")
    book = transactional(store.url, store.table)
    began = time.monotonic()
    assert [book("a"), book("a")] == ["a", "a"]
    assert time.monotonic() - began < 25
    assert store.booked() == {"a": 1}


def test_a_call_waits_for_the_result_of_another_process(store: Store) -> None:
    program = (
        "import time\nfrom tests.functions.test_kills import checker_of\nfrom idempotent import idempotent\n"
        f"@idempotent(checker_of({store.url!r}, {store.table!r}), group='tests', key='order', name='charge')\n"
        "def charge(order: str) -> int:\n    print('runs', flush=True)\n    time.sleep(4)\n    return 7\n"
        "charge('a')"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline()

        @idempotent(checker_of(store.url, store.table), group="tests", key="order", name="charge", wait_s=60)
        def charge(order: str) -> int:
            pytest.fail("it ran")

        assert charge("a") == 7
        assert child.wait(30) == 0
