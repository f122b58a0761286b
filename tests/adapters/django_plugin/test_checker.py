"""DjangoChecker in its own atomic() and in one that is open: what commits with what."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest
import sqlalchemy as sa
from django.db import IntegrityError, OperationalError, connections, transaction

from idempotent import (
    ConfigurationError,
    DuplicateError,
    InProgressError,
    ResultNotStoredError,
    StoreError,
    idempotent,
    once,
)
from idempotent.adapters.django import DjangoChecker
from idempotent.errors import DeadKeyError, SchemaError, TransactionEscapedError
from idempotent.testing.proxy import Proxy
from tests.adapters.django_plugin.project import (
    add_database,
    connections_closed,
    effects,
    empty,
    write,
)


def protected(alias, function, **options):
    checker = DjangoChecker(alias, **options.pop("checker", {}))
    return idempotent(checker, **{"group": "tests", "key": "order", "name": "charge", **options})(function)


@pytest.fixture
def charge(alias):
    """A protected function that writes its order, and counts its runs."""

    def charge(order: str) -> int:
        charge.runs += 1
        write(alias, order)
        return charge.runs

    charge.runs = 0
    return protected(alias, charge)


def test_without_an_open_block_key_and_effect_commit_at_once(alias, charge):
    assert [charge("a"), charge("a"), charge("b")] == [1, 1, 2]
    connections[alias].close()  # what was not committed is gone
    assert effects(alias) == ["a", "b"]
    assert charge("a") == 1


def test_in_an_open_block_they_commit_with_it(alias, charge):
    with transaction.atomic(alias):
        assert [charge("a"), charge("a")] == [1, 1]
        assert connections[alias].in_atomic_block
    connections[alias].close()
    assert (charge("a"), effects(alias)) == (1, ["a"])


def test_a_failure_outside_takes_key_and_effect_back(alias, charge):
    def view() -> None:
        with transaction.atomic(alias):
            write(alias, "before")
            charge("a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        view()
    assert effects(alias) == []
    assert (charge("a"), effects(alias)) == (2, ["a"])


def test_a_failure_inside_leaves_the_outer_block_as_it_was(alias):
    def refuse(order: str) -> None:
        write(alias, order)
        raise ZeroDivisionError

    refuse = protected(alias, refuse)
    with transaction.atomic(alias):
        write(alias, "before")
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                refuse("a")
        write(alias, "after")
    assert effects(alias) == ["before", "after"]


def test_with_autocommit_off_nothing_is_committed_for_the_caller(alias, charge):
    transaction.set_autocommit(False, using=alias)
    try:
        if alias == "sqlite":
            with pytest.raises(ConfigurationError, match=r"use atomic\(\)"):
                charge("a")
            return
        charge("a")
        transaction.rollback(using=alias)
        assert charge("a") == 2
        transaction.commit(using=alias)
    finally:
        transaction.set_autocommit(True, using=alias)
    assert (charge("a"), effects(alias)) == (2, ["a"])


@pytest.mark.parametrize("is_open", [False, True])
def test_on_commit_runs_when_the_outermost_block_has_committed(alias, is_open):
    seen = []

    def charge(order: str) -> None:
        transaction.on_commit(lambda: seen.append(effects(alias)), using=alias)
        write(alias, order)

    charge = protected(alias, charge)
    if is_open:
        with transaction.atomic(alias):
            charge("a")
            assert seen == []
    else:
        charge("a")
    charge("a")
    assert seen == [["a"]]


def test_on_commit_does_not_run_for_what_is_taken_back(alias):
    seen = []

    def refuse(order: str) -> None:
        transaction.on_commit(lambda: seen.append(order), using=alias)
        raise ZeroDivisionError

    refuse = protected(alias, refuse)
    with pytest.raises(ZeroDivisionError):
        refuse("a")
    with transaction.atomic(alias), pytest.raises(ZeroDivisionError):
        refuse("a")
    assert seen == []


def test_an_error_of_on_commit_is_no_failure_of_what_has_committed(alias, caplog):
    def charge(order: str) -> int:
        transaction.on_commit(lambda: 1 / 0, using=alias)
        write(alias, order)
        return 1

    charge = protected(alias, charge)
    assert [charge("a"), charge("a")] == [1, 1]
    assert effects(alias) == ["a"]
    assert [line.event for line in caplog.records if hasattr(line, "event")] == ["after_commit_failed"]


@pytest.mark.parametrize("is_open", [False, True])
def test_an_ignored_error_of_the_database_is_no_success(alias, is_open):
    """Django's atomic() would roll back without a word."""

    def careless(order: str) -> None:
        write(alias, order)
        with suppress(IntegrityError), transaction.atomic(alias, savepoint=False):
            raise IntegrityError

    careless = protected(alias, careless)
    if is_open:
        with transaction.atomic(alias):
            with pytest.raises(TransactionEscapedError):
                careless("a")
            write(alias, "after")
        assert effects(alias) == ["after"]
    else:
        with pytest.raises(TransactionEscapedError):
            careless("a")
        assert effects(alias) == []


def test_a_transaction_that_the_handler_has_ended_is_no_success(alias):
    def commits(order: str) -> None:
        write(alias, order)
        with connections[alias].cursor() as cursor:
            cursor.execute("ROLLBACK")

    with pytest.raises((TransactionEscapedError, OperationalError)):
        protected(alias, commits)("a")
    assert effects(alias) == []


def test_a_handler_that_committed_and_failed_is_dead(alias):
    def commits(order: str) -> None:
        write(alias, order)
        with connections[alias].cursor() as cursor:
            cursor.execute("COMMIT")
        raise ZeroDivisionError

    commits = protected(alias, commits)
    with pytest.raises(ZeroDivisionError):
        commits("a")
    with pytest.raises(DeadKeyError, match="effect unknown"):
        commits("a")
    assert effects(alias) == ["a"]


def test_a_broken_block_takes_no_key(alias, charge):
    with transaction.atomic(alias):
        connections[alias].set_rollback(True)
        with pytest.raises(StoreError, match="broken the open atomic"):
            charge("a")
    assert (charge.__wrapped__.runs, effects(alias)) == (0, [])


def test_dead_for_holds_where_the_open_block_commits(alias):
    def refuse(order: str) -> None:
        raise ZeroDivisionError

    refuse = protected(alias, refuse, dead_for=ZeroDivisionError)
    with transaction.atomic(alias), pytest.raises(ZeroDivisionError):
        refuse("a")
    with pytest.raises(DeadKeyError):
        refuse("a")
    with pytest.raises(ZeroDivisionError):
        refuse("b")
    with pytest.raises(DeadKeyError):
        refuse("b")


def test_a_call_within_itself_is_in_progress(alias):
    def again(order: str) -> None:
        with pytest.raises(InProgressError):
            again(order)

    again = protected(alias, again)
    again("a")


def test_a_block_of_code(alias):
    checker = DjangoChecker(alias)
    with once(checker, "a", group="tests", name="block"):
        write(alias, "a")
    with pytest.raises(DuplicateError), once(checker, "a", group="tests", name="block"):
        write(alias, "a")
    assert effects(alias) == ["a"]


def test_copies_at_the_same_time_run_once_and_the_others_are_told_at_once(alias):
    """In two checkers, as in two processes: what is known in memory does not help."""
    began, end = threading.Event(), threading.Event()

    def slow(order: str) -> int:
        write(alias, order)
        began.set()
        assert end.wait(30)
        return 1

    def copy(_):
        started = time.monotonic()
        with pytest.raises(InProgressError):
            protected(alias, slow)("a")
        return time.monotonic() - started

    if alias == "sqlite":
        pytest.skip("a copy waits for the lock of the file, as any writer")
    with connections_closed(), ThreadPoolExecutor(21) as threads:
        first = threads.submit(protected(alias, slow), "a")
        assert began.wait(30)
        took = list(threads.map(copy, range(20)))
        end.set()
        assert first.result() == 1
    assert max(took) < 5
    assert effects(alias) == ["a"]


def test_with_a_wait_a_copy_has_the_result_of_the_first(alias):
    def slow(order: str) -> int:
        write(alias, order)
        time.sleep(0.5)
        return 1

    slow = protected(alias, slow, wait_s=60)
    with connections_closed(), ThreadPoolExecutor(10) as threads:
        assert list(threads.map(slow, ["a"] * 10)) == [1] * 10
    assert effects(alias) == ["a"]


def test_an_async_function_is_refused(alias):
    async def charge(order: str) -> None: ...

    with pytest.raises(ConfigurationError, match="sync_to_async"):
        asyncio.run(protected(alias, charge)("a"))


def test_in_an_event_loop_it_says_what_to_do(alias, charge):
    async def call() -> None:
        charge("a")

    with pytest.raises(ConfigurationError, match="sync_to_async"):
        asyncio.run(call())


def test_a_session_is_refused(alias):
    def charge(order: str, session: sa.Connection) -> None: ...

    with pytest.raises(ConfigurationError, match="Django's models and cursors"):
        protected(alias, charge)("a")


def test_missing_tables_are_named(postgres, postgres_project):
    with connections[postgres].cursor() as cursor:
        cursor.execute("ALTER TABLE deduplicate_tbl RENAME TO elsewhere")
    try:
        for use in (lambda: protected(postgres, lambda order: None)("a"), DjangoChecker(postgres).ping):
            with pytest.raises(SchemaError, match=r"manage\.py migrate --database postgres"):
                use()
    finally:
        with connections[postgres].cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO deduplicate_tbl")
    DjangoChecker(postgres).ping()


def behind_proxy(proxy, project_url):
    url = sa.make_url(project_url).set(host="127.0.0.1", port=proxy.port)
    add_database("proxied", url.render_as_string(hide_password=False))


@pytest.fixture(params=["mysql", "postgres"])
def proxied(request):
    """A database behind a proxy, which can lose connections and answers."""
    url = request.getfixturevalue(f"{request.param}_project")
    address = sa.make_url(url)
    with closing(Proxy(address.host, address.port)) as proxy:
        behind_proxy(proxy, url)
        yield request.param, proxy
        connections["proxied"].close()
        del connections.settings["proxied"], connections["proxied"]
        empty(request.param)


def test_a_connection_that_was_lost_while_idle_is_opened_anew(proxied):
    alias, proxy = proxied
    charge = protected("proxied", lambda order: write("proxied", order))
    charge("a")
    proxy.cut()
    charge("b")
    assert effects(alias) == ["a", "b"]


def test_a_handler_whose_connection_is_lost_runs_again(proxied):
    alias, proxy = proxied
    runs = []

    def charge(order: str) -> int:
        runs.append(order)
        write("proxied", order)
        if len(runs) == 1:
            proxy.cut()
        write("proxied", f"{order} too")
        return len(runs)

    assert protected("proxied", charge)("a") == 2
    assert effects(alias) == ["a", "a too"]


def test_in_an_open_block_it_does_not_since_the_block_is_lost(proxied):
    alias, proxy = proxied
    runs = []

    def charge(order: str) -> None:
        runs.append(order)
        proxy.cut()
        write("proxied", order)

    charge = protected("proxied", charge)

    def view() -> None:
        with transaction.atomic("proxied"):
            write("proxied", "before")
            charge("a")

    with pytest.raises(Exception, match=r"(?i)lost|closed|gone|read|connect"):
        view()
    assert (runs, effects(alias)) == (["a"], [])


@pytest.mark.parametrize("is_there", [True, False])
def test_a_commit_whose_answer_is_lost_is_looked_up(proxied, is_there, caplog):
    """The server commits, and the answer is lost; or its connection is lost before. Never a wrong verdict."""
    alias, proxy = proxied

    def charge(order: str) -> int:
        write("proxied", order)
        raw = connections["proxied"].connection
        commit = raw.commit

        def losing() -> None:
            if is_there:
                commit()
            proxy.cut()
            raw.cursor().execute("SELECT 1")  # an idle connection of psycopg does not notice by a COMMIT

        lost = type(
            "Losing", (), {"commit": staticmethod(losing), "__getattr__": lambda _, name: getattr(raw, name)}
        )
        connections["proxied"].connection = lost()
        return 1

    charge = protected("proxied", charge)
    if is_there:
        assert charge("a") == 1
        assert "commit_answer_lost" in [getattr(line, "event", "") for line in caplog.records]
    else:
        with pytest.raises(StoreError):
            charge("a")
    assert effects(alias) == ["a"] * is_there


def test_a_store_that_is_away_is_a_store_error(proxied):
    _, proxy = proxied
    charge = protected("proxied", lambda order: write("proxied", order))
    charge("a")
    proxy.refuse()
    proxy.cut()
    with pytest.raises(StoreError):
        charge("b")
    proxy.recover()
    charge("b")


def test_a_result_that_is_not_stored_is_said(alias):
    charge = protected(alias, lambda order: (1, 2))
    assert charge("a") == (1, 2)
    with pytest.raises(ResultNotStoredError):
        charge("a")
