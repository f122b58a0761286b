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
    decision = checker.protocol.claim(ClaimRequest(KEYS.key("7")))
    assert (decision.verdict, decision.deaths, decision.claim.deaths) == (Verdict.ACQUIRED, 1, 1)


def test_a_completion_whose_answer_was_lost_counts(make, loses_answers):
    checker = made_with_scripts(make, loses_answers)
    claim = checker.protocol.claim(ClaimRequest(KEYS.key("7"))).claim
    loses_answers.lose = 1
    assert checker.protocol.complete(claim, b"1")


@pytest.mark.parametrize("max_attempts", [1, 5])
def test_a_failure_whose_answer_was_lost_is_counted_once(make, loses_answers, max_attempts):
    checker = made_with_scripts(make, loses_answers)
    claim = checker.protocol.claim(ClaimRequest(KEYS.key("7"))).claim
    loses_answers.lose = 1
    released = checker.protocol.release(claim, Failure("boom", max_attempts))
    assert (released.owned, released.attempts, released.dead) == (True, 1, max_attempts == 1)


def test_an_answer_lost_twice_is_an_error(make, loses_answers):
    checker = made_with_scripts(make, loses_answers)
    loses_answers.lose = 2
    with pytest.raises(StoreUnavailableError, match="connection lost"):
        checker.protocol.claim(ClaimRequest(KEYS.key("7")))
