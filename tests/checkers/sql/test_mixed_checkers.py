"""A leased and a transactional checker on one table, as while a consumer changes from one to the other."""

import time

import pytest
from sqlalchemy.orm import Session

from idempotent.claims import ClaimRequest, KeyStatus, Lapsed, Verdict
from idempotent.keys import KeySpace
from tests.checkers.sql.booking import consumer_of, messages
from tests.guarantees.orders import consumer_of as leased_consumer_of
from tests.guarantees.orders import message
from tests.support.stores import SQL, open_store

KEY = KeySpace("orders", "default").key("1")


@pytest.fixture(params=SQL)
def store(request):
    yield from open_store(request.param, request, reuse=True)


@pytest.fixture(params=["mysql", "postgres"])
def server(request):
    yield from open_store(request.param, request, reuse=True)


def lapsed(store):
    """A key that a leased consumer that parks left behind."""
    checker = store.leased()
    park = ClaimRequest(KEY, status=KeyStatus.IN_PROGRESS_PARK, on_lapsed=Lapsed.PARK)
    checker.protocol.abandon(checker.protocol.claim(park).claim)
    store.age(3600)


@pytest.mark.slow
def test_a_leased_claim_waits_a_moment_for_a_key_in_a_transaction(server):
    """And is then told to come again, however long the other handler takes."""
    holder = server.transactional()
    claim = holder.protocol.claim(ClaimRequest(KEY)).claim
    checker = server.leased()
    began = time.monotonic()
    decision = checker.protocol.claim(ClaimRequest(KEY))
    assert time.monotonic() - began < 20
    assert decision.verdict is Verdict.IN_PROGRESS
    assert decision.retry_after_s > 0
    assert holder.protocol.complete(claim)
    assert checker.protocol.claim(ClaimRequest(KEY)).verdict is Verdict.DUPLICATE


@pytest.mark.slow
def test_a_leased_group_leaves_out_a_key_in_a_transaction(server):
    holder = server.transactional()
    claim = holder.protocol.claim(ClaimRequest(KEY)).claim
    ran = []
    consumer = leased_consumer_of(server.leased(), lambda m: ran.append(m.id))
    results = consumer.process_many([message("0"), message("1")])
    assert [result.outcome.value for result in results] == ["processed", "in_progress"]
    assert ran == ["0"]
    holder.protocol.release(claim)


def test_the_applications_own_lock_timeout_stays(server):
    """The limit belongs to the checker's connections, and on PostgreSQL to its statements."""
    setting = {"mysql": "SELECT @@innodb_lock_wait_timeout", "postgres": "SHOW lock_timeout"}[server.kind]
    with server.consumer_engine().connect() as connection:
        before = connection.exec_driver_sql(setting).scalar()
    leased = server.leased()
    leased.protocol.release(leased.protocol.claim(ClaimRequest(KEY)).claim)
    seen = []

    def look(message, session: Session):
        seen.append(session.connection().exec_driver_sql(setting).scalar())

    consumer_of(server, server.transactional(), look)(messages("1")[0])
    assert seen == [before]
