"""What a background thread opens is closed, although the checker was closed before it connected."""

import sqlite3
import threading
from contextlib import suppress

import pytest
from sqlalchemy import event

from idempotent.checkers import SqlChecker
from idempotent.claims import ClaimRequest
from idempotent.errors import StoreUnavailableError
from idempotent.keys import KeySpace
from tests.support.hooks import answering
from tests.support.stores import SQL, open_store
from tests.worker.running import until

KEY = KeySpace("orders", "closing").key("1")
WITHIN_S = 60.0
BACKGROUND = ("idempotent-renewal", "idempotent-owed")


def is_open(raw):
    if isinstance(raw, sqlite3.Connection):
        with suppress(sqlite3.ProgrammingError):
            return raw.total_changes >= 0
        return False
    return raw.open if hasattr(raw, "open") else not raw.closed


class Paused:
    """A hook that background threads reach and leave only when they may; other threads get an error at first."""

    def __init__(self, hook, errors=0):
        self._hook, self._errors = hook, errors
        self.threads, self.reached, self.go_on = [], threading.Event(), threading.Event()

    def __call__(self, *arguments):
        thread = threading.current_thread()
        if thread.name in BACKGROUND:
            self.threads.append(thread)
            self.reached.set()
            assert self.go_on.wait(WITHIN_S)
        elif self._errors:
            self._errors -= 1
            raise StoreUnavailableError("gone")
        return self._hook(*arguments)


@pytest.fixture(params=SQL)
def made(request):
    """(a checker with a short lease, all connections of its engine)."""
    for store in open_store(request.param, request, reuse=True):
        engine, connections = store.engine(), []
        event.listen(engine, "connect", lambda raw, _, all_=connections: all_.append(raw))
        checker = SqlChecker(engine, table=store.table, lease_s=1.0)
        yield checker, connections
        checker.close()


def demand_nothing_open(checker, paused, connections):
    assert paused.reached.wait(WITHIN_S)
    checker.close()
    paused.go_on.set()
    for thread in paused.threads:
        thread.join(WITHIN_S)
        assert not thread.is_alive()
    assert len(connections) >= 2
    # A renewal of the same claim may be under way, in a thread of its own.
    until(lambda: not [raw for raw in connections if is_open(raw)])


def test_a_renewal_that_connects_after_the_checker_was_closed_leaves_no_connection(made):
    checker, connections = made
    paused = Paused(checker._renew_many)
    with answering(checker, _renew_many=paused):
        checker.protocol.claim(ClaimRequest(KEY))
        demand_nothing_open(checker, paused, connections)


def test_a_retry_that_connects_after_the_checker_was_closed_leaves_no_connection(made):
    checker, connections = made
    paused = Paused(checker._complete, errors=2)  # of the handler, and of close()
    claim = checker.protocol.claim(ClaimRequest(KEY)).claim
    with answering(checker, _complete=paused):
        with pytest.raises(StoreUnavailableError):
            checker.protocol.complete(claim)
        demand_nothing_open(checker, paused, connections)
