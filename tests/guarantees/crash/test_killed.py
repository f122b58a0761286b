"""A process is killed at each point of a message's way, and the message is delivered again."""

from __future__ import annotations

import pytest

from idempotent import Message, Outcome
from idempotent.claims import UNKNOWN_EFFECT, KeyStatus
from idempotent.outcomes import Action
from tests.guarantees.crash.child import SUBJECT
from tests.guarantees.crash.scene import deliver, deliver_until_settled, until

# A process that died had this long a lease where a test looks at the lease while it lasts.
LONG_S = 4.0
BETWEEN_EFFECT_AND_COMPLETION = ("after_effect", "before_complete")


# Leased claims


def test_before_the_claim_nothing_is_held(leased):
    assert leased.die("before_claim") == []
    assert leased.keys() == {}
    assert deliver(leased.consumer()).outcome is Outcome.PROCESSED
    assert leased.effects() == {"1": 1}


@pytest.mark.slow
def test_after_the_claim_the_key_is_held_till_the_lease_ends_and_then_runs_once(leased):
    consumer = leased.consumer(lease_s=LONG_S)
    assert deliver(consumer, "warm").outcome is Outcome.PROCESSED  # connect before the lease runs
    assert leased.die("after_claim", lease_s=LONG_S) == []
    held = deliver(consumer)
    assert (held.outcome, held.action) == (Outcome.IN_PROGRESS, Action.HOLD)
    assert 0 < held.retry_after_s <= LONG_S
    fence = leased.key().fence
    assert deliver_until_settled(consumer).outcome is Outcome.PROCESSED
    assert leased.effects() == {"warm": 1, "1": 1}
    assert leased.key().fence > fence
    assert deliver(consumer).outcome is Outcome.DUPLICATE


@pytest.mark.parametrize("point", BETWEEN_EFFECT_AND_COMPLETION)
def test_between_effect_and_completion_retry_repeats_the_effect_exactly_once(leased, point):
    assert leased.die(point) == []
    consumer = leased.consumer()
    assert deliver_until_settled(consumer).outcome is Outcome.PROCESSED
    assert leased.effects() == {"1": 2}
    assert deliver(consumer).outcome is Outcome.DUPLICATE
    assert leased.effects() == {"1": 2}


def test_between_effect_and_completion_park_leaves_it_to_a_person(leased):
    leased.die("after_effect", policy="park")
    consumer = leased.consumer(policy="park")
    parked = deliver_until_settled(consumer)
    assert (parked.outcome, parked.action) == (Outcome.DEAD, Action.DEAD_LETTER)
    assert "effect unknown" in str(parked.error)
    record = leased.key()
    assert (record.status, record.attempts, record.last_error) == (KeyStatus.DEAD, 0, UNKNOWN_EFFECT)
    assert deliver(consumer).outcome is Outcome.DEAD
    assert leased.effects() == {"1": 1}


@pytest.mark.parametrize(
    ("point", "outcome"), [("after_effect", Outcome.DUPLICATE), ("after_claim", Outcome.PROCESSED)]
)
def test_a_consumer_that_can_tell_is_asked(leased, point, outcome):
    leased.die(point, policy="ask")
    consumer = leased.consumer(policy="ask")
    assert deliver_until_settled(consumer).outcome is outcome
    assert leased.asked() == 1
    assert leased.effects() == {"1": 1}
    assert deliver(consumer).outcome is Outcome.DUPLICATE
    assert leased.asked() == 1


@pytest.mark.parametrize("point", ["after_complete", "before_ack"])
def test_after_completion_a_redelivery_is_a_duplicate(leased, point):
    assert leased.die(point) == []
    again = deliver(leased.consumer())
    assert (again.outcome, again.action) == (Outcome.DUPLICATE, Action.ACK)
    assert leased.effects() == {"1": 1}


@pytest.mark.slow
def test_a_message_that_kills_its_process_dies_in_the_end_and_has_no_attempts(leased):
    leased.die("before_effect", max_deaths=2)
    first = leased.key()
    until(lambda: leased.keys()["1"].lapsed, "the lease ends")
    leased.die("before_effect", max_deaths=2)
    second = leased.key()
    assert (first.deaths, second.deaths) == (0, 1)
    assert second.fence > first.fence
    dead = deliver_until_settled(leased.consumer(max_deaths=2))
    assert (dead.outcome, dead.action) == (Outcome.DEAD, Action.DEAD_LETTER)
    record = leased.key()
    assert (record.status, record.last_error) == (KeyStatus.DEAD, "its process died 2 times while it ran")
    assert leased.effects() == {}


# Transactions

COMMITTED = ("after_commit", "after_complete", "before_ack")
OPEN = ("before_claim", "after_claim", "before_effect", "after_effect", "before_complete", "before_commit")


@pytest.mark.parametrize("point", [*OPEN, *COMMITTED])
def test_key_and_effect_commit_together_or_not_at_all(transactional, point):
    assert transactional.die(point) == []
    known = point in COMMITTED
    assert transactional.effects() == ({"1": 1} if known else {})
    assert set(transactional.keys()) == ({"1"} if known else set())
    consumer = transactional.consumer(max_attempts=1)
    again = deliver_until_settled(consumer)
    assert again.outcome is (Outcome.DUPLICATE if known else Outcome.PROCESSED)
    assert again.action is Action.ACK
    assert transactional.effects() == {"1": 1}
    assert transactional.key().attempts == 0, "a first delivery is not counted"


def test_a_message_that_kills_its_process_in_a_transaction_is_dead_in_the_end(transactional):
    """Its first delivery is not noted, and each later one is."""
    for redelivered in (False, True, True):
        transactional.die("before_effect", max_deaths=2, redelivered=redelivered)
    consumer = transactional.consumer(max_deaths=2)

    def settled():
        result = consumer.process(Message(SUBJECT, id="1", redelivered=True))
        return None if result.action is Action.HOLD else result

    dead = until(settled, "the server notices the death")
    assert (dead.outcome, dead.action) == (Outcome.DEAD, Action.DEAD_LETTER)
    record = transactional.key()
    assert (record.status, record.last_error) == (KeyStatus.DEAD, "its process died 2 times while it ran")
    assert transactional.effects() == {}


def test_one_of_a_group_dies_of_its_deaths_and_the_others_run(transactional):
    # A group that is noted; then each alone, and the second once more.
    for point in ("before_effect:2", "before_effect:2", "before_effect"):
        transactional.die(point, ids=("1", "2", "3"), together=True, redelivered=True, max_deaths=3)
    consumer = transactional.consumer(max_deaths=3)

    def settled():
        messages = [Message(SUBJECT, id=i, redelivered=True) for i in ("1", "2", "3")]
        results = consumer.process_many(messages)
        return None if any(result.action is Action.HOLD for result in results) else results

    results = until(settled, "the server notices the death")
    assert [result.outcome for result in results] == [Outcome.DUPLICATE, Outcome.DEAD, Outcome.PROCESSED]
    assert transactional.effects() == {"1": 1, "3": 1}
