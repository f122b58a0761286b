"""A process is killed while one statement claims or completes several messages that were given one by one."""

from __future__ import annotations

import pytest

from idempotent import Outcome
from idempotent.claims import KeyStatus
from tests.guarantees.crash.scene import deliver_until_settled

IDS = tuple(str(i) for i in range(12))


@pytest.mark.parametrize("point", ["after_claim", "before_complete", "after_complete"])
def test_what_a_round_recorded_is_done_and_the_rest_runs_again(leased, point):
    settled = {line["id"] for line in leased.die(point, ids=IDS, at_once=True)}
    ran, keys = leased.effects(), leased.keys()
    done = {each for each, record in keys.items() if record.status is KeyStatus.DONE}
    in_round = {each for each, record in keys.items() if record.status is KeyStatus.IN_PROGRESS}
    assert settled <= done <= set(ran)
    of_the_round = in_round if point == "after_claim" else set(ran) - settled
    assert len(of_the_round) > 1
    assert point != "after_complete" or len(done - settled) > 1
    consumer = leased.consumer()
    outcomes = {each: deliver_until_settled(consumer, each).outcome for each in IDS}
    assert outcomes == {each: Outcome.DUPLICATE if each in done else Outcome.PROCESSED for each in IDS}
    assert leased.effects() == {each: ran.get(each, 0) + (each not in done) for each in IDS}
    assert {leased.key(each).attempts for each in in_round} <= {0}
