"""A process is killed inside a group of messages: those that never ran have lost nothing."""

from __future__ import annotations

import pytest

from idempotent import Message, Outcome
from idempotent.claims import KeyStatus
from tests.guarantees.crash.child import SUBJECT
from tests.guarantees.crash.scene import deliver_until_settled, until

IDS = tuple(str(i) for i in range(10))
DIES_AT = 3


@pytest.mark.slow
def test_a_leased_group_burns_no_attempt_and_each_runs_after_the_lease(leased):
    assert leased.die(f"after_effect:{DIES_AT}", ids=IDS, together=True, max_attempts=1) == []
    assert {record.status for record in leased.keys().values()} <= {
        KeyStatus.IN_PROGRESS,
        KeyStatus.DONE,
    }
    consumer = leased.consumer(max_attempts=1)
    until(lambda: all(r.lapsed or r.status is KeyStatus.DONE for r in leased.keys().values()), "leases end")
    results = consumer.process_many([Message(SUBJECT, id=i) for i in IDS])
    # A slow group records on its way; then a message of the first is known.
    assert {result.outcome for result in results} <= {Outcome.PROCESSED, Outcome.DUPLICATE}
    assert [result.outcome for result in results[DIES_AT - 1 :]] == [Outcome.PROCESSED] * 8
    effects = leased.effects()
    assert effects[IDS[DIES_AT - 1]] == 2
    assert {i: effects[i] for i in IDS[DIES_AT:]} == dict.fromkeys(IDS[DIES_AT:], 1)
    assert {r.status for r in leased.keys().values()} == {KeyStatus.DONE}
    assert {r.attempts for r in leased.keys().values()} == {0}


@pytest.mark.parametrize("point", [f"after_effect:{DIES_AT}", "before_commit", "after_commit"])
def test_a_transactional_group_is_undone_or_done_as_a_whole(transactional, point):
    assert transactional.die(point, ids=IDS, together=True, max_attempts=1) == []
    known = point == "after_commit"
    assert len(transactional.effects()) == (10 if known else 0)
    consumer = transactional.consumer(max_attempts=1)
    expected = Outcome.DUPLICATE if known else Outcome.PROCESSED

    def all_settled() -> bool:
        results = consumer.process_many([Message(SUBJECT, id=i) for i in IDS])
        outcomes = {result.outcome for result in results}
        if outcomes & {Outcome.IN_PROGRESS, Outcome.UNAVAILABLE}:
            return False  # the server has not noticed the death yet
        assert outcomes == {expected}
        return True

    until(all_settled, "every message is settled")
    assert transactional.effects() == dict.fromkeys(IDS, 1)
    assert {r.attempts for r in transactional.keys().values()} == {0}


@pytest.mark.slow
def test_a_poison_message_in_a_group_dies_alone(leased):
    ids, poison = IDS[:4], "2"
    # The two before it run again each time, and are done when only it is left.
    for point in ("before_effect:3", "before_effect:3", "before_effect"):
        leased.die(point, ids=ids, together=True, max_deaths=3)
        until(
            lambda: all(r.lapsed or r.status is KeyStatus.DONE for r in leased.keys().values()), "leases end"
        )
    consumer = leased.consumer(max_deaths=3)
    results = {i: deliver_until_settled(consumer, i).outcome for i in ids}
    assert results[poison] is Outcome.DEAD
    assert {results[i] for i in ids if i != poison} <= {Outcome.DUPLICATE, Outcome.PROCESSED}
