"""The claim of a message that runs without protection: what its handler passes on stays the same."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from idempotent import Message, Outcome, Registry, current_claim
from idempotent.checkers import MemoryChecker, TransactionalSqlChecker
from idempotent.migrations import upgrade
from tests.support.hooks import answering, unreachable

GIVEN = Message("orders", id="1")
KEY = "orders:default:1"


@pytest.fixture(params=["plain", "async", "transactional"])
def consume(request, tmp_path):
    """Makes a consumer whose `process` and `process_many` answer with what its handler has seen of its claim."""

    def make(**options):
        seen = []

        def look():
            claim = current_claim()
            seen.append((str(claim.key), claim.key.token, claim.fence > 0))

        def plain(message):
            look()

        async def awaited(message):
            look()

        def transactional(message, session: Session):
            look()

        checker = MemoryChecker()
        if request.param == "transactional":
            engine = create_engine(f"sqlite:///{tmp_path}/keys.db")
            upgrade(engine)
            checker = TransactionalSqlChecker(engine)
        handler = {"plain": plain, "async": awaited, "transactional": transactional}[request.param]
        made = Registry().consumer("orders", checker=checker, **options)(handler)
        runs = asyncio.run if request.param == "async" else lambda results: results
        return made, seen, lambda *messages: runs(made.process_many(messages))

    return make


def test_with_the_kill_switch_a_duplicate_has_its_key_and_no_fence(consume, monkeypatch):
    monkeypatch.setenv("IDEMPOTENT_DISABLED", "all")
    consumer, seen, process = consume()
    for _ in range(2):
        (result,) = process(GIVEN)
        assert result.outcome is Outcome.PROCESSED
    token = consumer.key_of("1").token
    assert seen == [(KEY, token, True), (KEY, token, False)]


# A transactional checker has no handler without its store.
@pytest.mark.parametrize("consume", ["plain", "async"], indirect=True)
def test_without_a_store_each_message_of_a_group_has_its_key_and_no_fence(consume):
    consumer, seen, process = consume(on_store_error="process")
    with answering(consumer.checker, _claim=unreachable, _claim_many=unreachable):
        results = process(GIVEN, Message("orders", id="2"))
    assert [result.outcome for result in results] == [Outcome.PROCESSED] * 2
    assert seen == [(str(consumer.key_of(each)), consumer.key_of(each).token, False) for each in ("1", "2")]


def test_without_a_key_a_handler_that_asks_for_one_is_told_so(consume):
    _, seen, process = consume(on_missing_key="process")
    (result,) = process(Message("orders"))
    assert result.outcome is Outcome.FAILED
    assert "no key" in str(result.error)
    assert not seen
