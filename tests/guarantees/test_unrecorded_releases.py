"""A release that the store did not record is retried: no hiccup blocks a key for a lease, or for ever without one."""

import threading

import pytest

from idempotent import Outcome
from idempotent.checkers import MemoryChecker
from idempotent.checkers.owed import OwedSteps
from idempotent.claims import ClaimRequest, Completion, KeyStatus, Lapsed, Verdict
from idempotent.errors import StoreError
from idempotent.observe import counters
from tests.guarantees.orders import ORDERS, consumer_of, message, outcomes, wait
from tests.support.hooks import answering, unreachable
from tests.support.logs import logged
from tests.support.stores import SHARED, open_store

KEY = ORDERS.key("1")


def owed_steps(record):
    return OwedSteps(record, lambda _: None, lambda: None, counters.add)


def fails(_message):
    raise ValueError("no")


@pytest.fixture(params=SHARED)
def store(request):
    yield from open_store(request.param, request, reuse=True)


@pytest.mark.parametrize("lease_s", [30.0, None])
def test_a_failed_release_frees_the_key_and_counts_once_the_store_is_back(store, lease_s):
    checker = store.leased(lease_s=lease_s)
    with answering(checker, _release=unreachable):
        assert consumer_of(checker, fails).process(message()).outcome is Outcome.FAILED
        assert checker.protocol.unrecorded == 1
    wait(lambda: not checker.protocol.unrecorded, "the release is retried in the background")
    assert checker.admin().get(KEY) is None
    assert consumer_of(checker, fails, max_attempts=2).process(message()).outcome is Outcome.DEAD


@pytest.mark.parametrize("lease_s", [30.0, None])
def test_a_completion_is_recorded_once_the_store_is_back(store, lease_s):
    checker = store.leased(lease_s=lease_s)
    with answering(checker, _complete=unreachable):
        assert consumer_of(checker).process(message()).outcome is Outcome.UNAVAILABLE
    wait(lambda: not checker.protocol.unrecorded, "the completion is retried in the background")
    assert checker.admin().get(KEY).status is KeyStatus.DONE


@pytest.mark.parametrize("lease_s", [30.0, None])
def test_the_releases_of_a_group_are_retried_too(store, lease_s):
    checker = store.leased(lease_s=lease_s)
    consumer = consumer_of(checker, fails)
    with answering(checker, _release_many=unreachable):
        results = consumer.process_many([message("1"), message("2")])
        assert outcomes(results) == ["failed", "failed"]
    wait(lambda: not checker.protocol.unrecorded, "they are retried")
    assert checker.admin().get(KEY) is None
    assert consumer_of(checker).process(message("2")).outcome is Outcome.PROCESSED


def test_the_next_claim_in_this_process_does_not_wait_for_the_background():
    checker = MemoryChecker(lease_s=None)
    consumer = consumer_of(checker, fails)
    with answering(checker, _release=unreachable):
        consumer.process(message())
        assert consumer.process(message()).outcome is Outcome.IN_PROGRESS
    assert consumer.process(message()).outcome is Outcome.FAILED
    assert checker.attempts[KEY.hash].count == 2


def test_a_release_that_comes_too_late_changes_nothing_of_the_new_owner():
    clock = [1000.0]
    checker = MemoryChecker(clock=lambda: clock[0])
    with answering(checker, _release=unreachable):
        consumer_of(checker, fails).process(message())
        clock[0] += 3600
        thief = checker._claim(ClaimRequest(KEY)).claim
    checker.close()
    assert checker.protocol.unrecorded == 0
    assert checker.entries[KEY.hash].owner == thief.owner
    assert not checker.attempts


def test_a_death_too_many_that_could_not_be_recorded_is_offered_again(store):
    checker = store.leased()
    checker.protocol.abandon(checker.protocol.claim(ClaimRequest(KEY)).claim)
    store.age(3600)
    ran = []
    consumer = consumer_of(checker, ran.append, max_deaths=1)
    with answering(checker, _release=unreachable):
        assert consumer.process(message()).outcome is Outcome.UNAVAILABLE
    wait(lambda: not checker.protocol.unrecorded, "the message is dead")
    assert consumer.process(message()).outcome is Outcome.DEAD
    assert not ran


def test_a_release_that_is_retried_says_nothing_about_a_lost_effect(caplog):
    checker = MemoryChecker()
    with answering(checker, _release=unreachable):
        consumer_of(checker, fails).process(message())
    checker.entries.clear()
    checker.close()
    assert "completion_lost" not in caplog.text


def test_what_is_remembered_while_an_older_step_is_retried_stays():
    """The older completion of a key must not remove the newer one."""
    claims = [MemoryChecker().protocol.claim(ClaimRequest(KEY)).claim for _ in range(2)]
    older, newer = map(Completion, claims)
    offered = []

    def record(step):
        offered.append(step)
        if step is older:
            owed.remember([newer])
        return True

    owed = owed_steps(record)
    owed.remember([older])
    assert owed.settle(KEY.hash)
    assert owed.number(Completion) == 1
    owed.close()
    assert offered == [older, newer]


def test_two_threads_may_retry_one_step():
    both = threading.Barrier(2, timeout=10)

    def record(_step):
        both.wait()
        return True

    owed = owed_steps(record)
    step = Completion(MemoryChecker().protocol.claim(ClaimRequest(KEY)).claim)
    owed.steps[KEY.hash] = step
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(owed.settle(KEY.hash))) for _ in "12"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert answers == [True, True]


def test_a_claim_that_leaves_lapsed_keys_waits_for_the_record_too():
    checker = MemoryChecker()
    with answering(checker, _complete=unreachable):
        consumer_of(checker).process(message())
        asked = checker.protocol.claim(ClaimRequest(KEY, on_lapsed=Lapsed.LEAVE))
        assert asked.verdict is Verdict.IN_PROGRESS
    checker.close()


def test_an_outage_writes_one_line_a_minute_and_says_how_many_more(caplog):
    def refuse(_step):
        raise StoreError("down")

    owed = owed_steps(refuse)
    claims = [MemoryChecker().protocol.claim(ClaimRequest(KEY)).claim for _ in range(2)]
    for _ in range(3):
        for claim in claims:
            owed._offer(Completion(claim))
    lines = logged(caplog, "completion_not_recorded")
    assert [line.more for line in lines] == [0]
    assert owed._refused._kept_back == 5
