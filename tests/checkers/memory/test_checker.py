"""MemoryChecker when it is full. What it shares with other checkers, the contract tests."""

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.checkers import MemoryChecker
from idempotent.claims import ClaimRequest
from idempotent.errors import StoreError
from idempotent.keys import KeySpace

MOST = 1000


def consumer_behind(checker):
    return Registry().consumer("orders", checker=checker)(lambda _: None)


def order(number):
    return Message("orders", id=str(number))


def test_a_full_one_forgets_its_oldest_hundredth_and_knows_the_others():
    checker = MemoryChecker(max_keys=MOST)
    consumer = consumer_behind(checker)
    for number in range(MOST + 1):
        consumer(order(number))
    # At once: to look for the oldest one at a time took longer with every key before it.
    assert len(checker.entries) == MOST - MOST // 100 + 1
    assert consumer(order(MOST // 100)).outcome is Outcome.DUPLICATE
    assert consumer(order(MOST // 100 - 1)).outcome is Outcome.PROCESSED


def test_what_is_in_progress_is_not_forgotten():
    checker, orders = MemoryChecker(max_keys=MOST), KeySpace("orders", "default")
    running = checker.protocol.claim(ClaimRequest(orders.key("runs"))).claim
    consumer = consumer_behind(checker)
    for number in range(2 * MOST):
        consumer(order(number))
    assert checker.protocol.complete(running)


def test_one_full_of_what_is_in_progress_says_so():
    checker, orders = MemoryChecker(max_keys=2), KeySpace("orders", "default")
    for number in range(2):
        checker.protocol.claim(ClaimRequest(orders.key(str(number))))
    with pytest.raises(StoreError, match="raise max_keys"):
        checker.protocol.claim(ClaimRequest(orders.key("one more")))


def test_a_group_that_does_not_fit_leaves_no_key_claimed():
    checker = MemoryChecker(max_keys=3)
    held = checker.protocol.claim(ClaimRequest(KeySpace("orders", "default").key("held"))).claim
    consumer = consumer_behind(checker)
    results = consumer.process_many([order(number) for number in range(5)])
    assert [result.outcome for result in results] == [Outcome.UNAVAILABLE] * 5
    assert "raise max_keys" in str(results[0].error)
    assert list(checker.entries) == [held.key.hash]
    assert [each.outcome for each in consumer.process_many([order(1), order(2)])] == [Outcome.PROCESSED] * 2
