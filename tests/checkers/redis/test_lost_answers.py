"""An answer of the server that gets lost changes no verdict."""

import time

import pytest

from idempotent.claims import ClaimRequest, Failure, Verdict
from idempotent.errors import StoreUnavailableError
from tests.checkers.redis.stored import KEYS, made_with_scripts


def test_a_claim_whose_answer_was_lost_is_still_a_claim(make, loses_answers):
    checker = made_with_scripts(make, loses_answers)
    loses_answers.lose = 1
    assert checker.desk.claim(ClaimRequest(KEYS.key("7"))).verdict is Verdict.ACQUIRED


def test_a_take_over_whose_answer_was_lost_is_still_known_as_one(make, loses_answers):
    checker = made_with_scripts(make, loses_answers)
    make(lease_s=0.05)._claim(ClaimRequest(KEYS.key("7")))
    time.sleep(0.1)
    loses_answers.lose = 1
    decision = checker.desk.claim(ClaimRequest(KEYS.key("7"), max_attempts=5))
    assert (decision.verdict, decision.lapsed, decision.alone) == (Verdict.ACQUIRED, True, True)
    assert checker.admin().get(KEYS.key("7")).attempts == 1


def test_a_lapse_is_counted_once_however_often_its_new_owner_asks(make):
    checker = make()
    make(lease_s=0.05)._claim(ClaimRequest(KEYS.key("7")))
    time.sleep(0.1)
    request = ClaimRequest(KEYS.key("7"), max_attempts=5)
    assert checker.desk.claim(request).alone
    again = checker.desk.claim(request)
    assert (again.verdict, again.alone) == (Verdict.ACQUIRED, False)
    assert checker.admin().get(KEYS.key("7")).attempts == 1


def test_a_completion_whose_answer_was_lost_counts(make, loses_answers):
    checker = made_with_scripts(make, loses_answers)
    claim = checker.desk.claim(ClaimRequest(KEYS.key("7"))).claim
    loses_answers.lose = 1
    assert checker.desk.complete(claim, b"1")


@pytest.mark.parametrize("keep_claim", [False, True])
@pytest.mark.parametrize("max_attempts", [1, 5])
def test_a_failure_whose_answer_was_lost_is_counted_once(make, loses_answers, keep_claim, max_attempts):
    checker = made_with_scripts(make, loses_answers)
    claim = checker.desk.claim(ClaimRequest(KEYS.key("7"))).claim
    loses_answers.lose = 1
    released = checker.desk.release(claim, Failure("boom", max_attempts, keep_claim=keep_claim))
    assert (released.owned, released.attempts, released.dead) == (True, 1, max_attempts == 1)


def test_two_failures_of_one_claim_count_twice(make):
    checker = make()
    claim = checker.desk.claim(ClaimRequest(KEYS.key("7"))).claim
    assert checker.desk.release(claim, Failure("lapse", 5, keep_claim=True)).attempts == 1
    assert checker.desk.release(claim, Failure("boom", 5)).attempts == 2


def test_an_answer_lost_twice_is_an_error(make, loses_answers):
    checker = made_with_scripts(make, loses_answers)
    loses_answers.lose = 2
    with pytest.raises(StoreUnavailableError, match="connection lost"):
        checker.desk.claim(ClaimRequest(KEYS.key("7")))
