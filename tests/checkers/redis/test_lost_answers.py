"""An answer of the server that gets lost changes no verdict."""

import time

import pytest

from idempotent.claims import ClaimRequest, Failure, Verdict
from idempotent.errors import StoreUnavailableError
from tests.checkers.redis.stored import KEYS, made_with_scripts


def test_a_claim_whose_answer_was_lost_is_still_a_claim(make, loses_answers):
    checker = made_with_scripts(make, loses_answers)
    loses_answers.lose = 1
    assert checker.protocol.claim(ClaimRequest(KEYS.key("7"))).verdict is Verdict.ACQUIRED


def test_a_take_over_whose_answer_was_lost_is_still_known_as_one(make, loses_answers):
    checker = made_with_scripts(make, loses_answers)
    make(lease_s=0.05)._claim(ClaimRequest(KEYS.key("7")))
    time.sleep(0.1)
    loses_answers.lose = 1
    decision = checker.protocol.claim(ClaimRequest(KEYS.key("7"), max_attempts=5))
    assert (decision.verdict, decision.lapsed, decision.lapse_counts) == (Verdict.ACQUIRED, True, True)
    assert checker.admin().get(KEYS.key("7")).attempts == 1


def test_a_lapse_is_counted_once_however_often_its_new_owner_asks(make):
    checker = make()
    make(lease_s=0.05)._claim(ClaimRequest(KEYS.key("7")))
    time.sleep(0.1)
    request = ClaimRequest(KEYS.key("7"), max_attempts=5)
    assert checker.protocol.claim(request).lapse_counts
    again = checker.protocol.claim(request)
    assert (again.verdict, again.lapse_counts) == (Verdict.ACQUIRED, False)
    assert checker.admin().get(KEYS.key("7")).attempts == 1


def test_a_completion_whose_answer_was_lost_counts(make, loses_answers):
    checker = made_with_scripts(make, loses_answers)
    claim = checker.protocol.claim(ClaimRequest(KEYS.key("7"))).claim
    loses_answers.lose = 1
    assert checker.protocol.complete(claim, b"1")


@pytest.mark.parametrize("keep_claim", [False, True])
@pytest.mark.parametrize("max_attempts", [1, 5])
def test_a_failure_whose_answer_was_lost_is_counted_once(make, loses_answers, keep_claim, max_attempts):
    checker = made_with_scripts(make, loses_answers)
    claim = checker.protocol.claim(ClaimRequest(KEYS.key("7"))).claim
    loses_answers.lose = 1
    released = checker.protocol.release(claim, Failure("boom", max_attempts, keep_claim=keep_claim))
    assert (released.owned, released.attempts, released.dead) == (True, 1, max_attempts == 1)


def test_two_failures_of_one_claim_count_twice(make):
    checker = make()
    claim = checker.protocol.claim(ClaimRequest(KEYS.key("7"))).claim
    assert checker.protocol.release(claim, Failure("lapse", 5, keep_claim=True)).attempts == 1
    assert checker.protocol.release(claim, Failure("boom", 5)).attempts == 2


def test_an_answer_lost_twice_is_an_error(make, loses_answers):
    checker = made_with_scripts(make, loses_answers)
    loses_answers.lose = 2
    with pytest.raises(StoreUnavailableError, match="connection lost"):
        checker.protocol.claim(ClaimRequest(KEYS.key("7")))
