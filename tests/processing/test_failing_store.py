"""What becomes of a group whose store fails in the middle."""

from __future__ import annotations

import pytest

from idempotent import Outcome
from idempotent.checkers.sql.handler_transaction import HandlerTransaction
from idempotent.observe import Event, counters
from tests.processing.shop import messages, outcomes
from tests.support.hooks import answering, unreachable


@pytest.mark.parametrize("batch", [False, True])
def test_a_completion_the_store_did_not_take_is_unavailable_and_its_effect_is_not_repeated(
    leased_shop, batch
):
    checker = leased_shop.checker
    consumer = leased_shop.consumer(batch=batch)
    with answering(checker, _complete=unreachable, _complete_many=unreachable):
        lost = consumer.process_many(messages("1", "2", "3"))
        meanwhile = consumer.process_many(messages("1", "4"))
    assert [(r.outcome, r.action.value, r.retry_after_s > 0) for r in lost] == [
        (Outcome.UNAVAILABLE, "hold", True)
    ] * 3
    assert outcomes(meanwhile) == ["in_progress", "unavailable"]
    assert counters.snapshot()[consumer.name, Event.COMPLETION_NOT_RECORDED] >= 3
    assert outcomes(consumer.process_many(messages("1", "2", "3", "4"))) == ["duplicate"] * 4
    assert leased_shop.effects() == {"1": 1, "2": 1, "3": 1, "4": 1}
    if leased_shop.store.kind != "memory":
        elsewhere = leased_shop.consumer(leased_shop.another_checker())
        assert outcomes(elsewhere.process_many(messages("1", "2", "3"))) == ["duplicate"] * 3


def test_a_group_that_cannot_be_claimed_is_unavailable_and_did_not_run(shop):
    consumer = shop.consumer(max_attempts=1)
    with answering(shop.checker, _claim_many=unreachable):
        results = consumer.process_many(messages("1", "2", "1"))
    assert outcomes(results) == ["unavailable"] * 3
    assert shop.calls == []
    assert outcomes(consumer.process_many(messages("1", "2", "1"))) == ["processed", "processed", "duplicate"]


def test_a_group_whose_commit_did_not_happen_is_unavailable_and_runs_again(transactional_shop, monkeypatch):
    consumer = transactional_shop.consumer(max_attempts=1)
    commit = HandlerTransaction.commit
    with monkeypatch.context() as outage:
        outage.setattr(
            HandlerTransaction,
            "commit",
            lambda transaction: (transaction.driver.raw.close(), commit(transaction)),
        )
        results = consumer.process_many(messages("1", "2", "3"))
    assert outcomes(results) == ["unavailable"] * 3
    assert transactional_shop.effects() == {}
    assert outcomes(consumer.process_many(messages("1", "2", "3"))) == ["processed"] * 3
    assert transactional_shop.effects() == {"1": 1, "2": 1, "3": 1}


def test_a_group_whose_commit_answer_was_lost_is_found_processed(transactional_shop, monkeypatch):
    consumer = transactional_shop.consumer(max_attempts=1)
    commit = HandlerTransaction.commit
    with monkeypatch.context() as outage:
        outage.setattr(
            HandlerTransaction, "commit", lambda transaction: (commit(transaction), lose_connection())
        )
        results = consumer.process_many(messages("1", "2", "3"))
    assert outcomes(results) == ["processed"] * 3
    assert outcomes(consumer.process_many(messages("1", "2", "3"))) == ["duplicate"] * 3
    assert transactional_shop.effects() == {"1": 1, "2": 1, "3": 1}


def lose_connection():
    raise ConnectionResetError("the peer is gone")
