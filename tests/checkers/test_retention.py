"""How long final keys are kept, on every store: what the contract cannot ask of every checker."""

from functools import partial

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.checkers import AttemptChecker, MemoryChecker, OffsetChecker
from idempotent.claims import ClaimRequest, Failure, KeyStatus, Lapsed, Verdict
from idempotent.errors import ConfigurationError
from idempotent.keys import KeySpace
from idempotent.policy import Backoff
from tests.support.stores import ALL, SQL, open_store

KEY = KeySpace("orders", "retention").key("1")
RETENTION_S = 3600.0


@pytest.fixture(params=ALL)
def store(request):
    yield from open_store(request.param, request, reuse=True)


@pytest.fixture(params=[*ALL, *(f"transactional {kind}" for kind in SQL)])
def made(request):
    """(the store, a function that makes its checker)."""
    guarantee, _, kind = request.param.rpartition(" ")
    for store in open_store(kind, request, reuse=True):
        yield store, store.transactional if guarantee else store.leased


def kill(checker, error="no"):
    assert checker.protocol.release(checker.protocol.claim(ClaimRequest(KEY)).claim, Failure(error, 1)).dead


def ask(checker, **options):
    decision = checker.protocol.claim(ClaimRequest(KEY, **options))
    if decision.claim:
        checker.protocol.release(decision.claim)
    return decision.verdict


def test_a_dead_key_is_shown_as_one_that_never_expires(made):
    _, make = made
    checker = make(retention_s=RETENTION_S)
    kill(checker)
    assert checker.admin().get(KEY).expires_at_us is None


def test_dead_keys_are_collected_with_their_attempts_if_the_user_says_so(made):
    store, make = made
    checker = make(retention_s=RETENTION_S, dead_retention_s=RETENTION_S / 2)
    kill(checker)
    store.age(RETENTION_S * 0.4)
    checker.garbage_collect()
    assert ask(checker) is Verdict.DEAD
    store.age(RETENTION_S * 0.2)
    checker.garbage_collect()
    claim = checker.protocol.claim(ClaimRequest(KEY)).claim
    assert claim, "the key is gone"
    assert checker.protocol.release(claim, Failure("no", 9)).attempts == 1, "and so are its attempts"


def failing(checker, longest_s, max_attempts, before=lambda: None):
    """A consumer that always fails, whose longest backoff is this."""
    backoff = Backoff(initial_s=longest_s / 2, maximum_s=longest_s)

    @Registry().consumer("orders", checker=checker, max_attempts=max_attempts, backoff=backoff)
    def handle(_):
        before()
        raise ValueError("as always")

    return handle


def test_a_backoff_shorter_than_the_retention_leaves_the_attempts_their_count(made):
    store, make = made
    consumer = failing(make(retention_s=RETENTION_S), RETENTION_S * 0.9, 3)
    results = []
    for position in range(3):
        results.append(consumer.process(Message("orders", id="1", position=position)))
        store.age(RETENTION_S * 0.95)
        consumer.checker.garbage_collect()
    assert [result.outcome for result in results] == [Outcome.FAILED, Outcome.FAILED, Outcome.DEAD]


def test_the_attempts_of_a_long_handler_are_kept_for_all_of_its_backoff(store):
    checker = store.leased(retention_s=RETENTION_S)
    slow = [RETENTION_S * 0.5]
    consumer = failing(checker, RETENTION_S * 0.9, 2, lambda: slow and store.age(slow.pop()))
    consumer.process(Message("orders", id="1", position=1))
    store.age(RETENTION_S * 0.95)
    checker.garbage_collect()
    assert consumer.process(Message("orders", id="1", position=2)).outcome is Outcome.DEAD


@pytest.mark.parametrize(
    "make",
    [MemoryChecker, partial(OffsetChecker, "sqlite:///unused.db"), AttemptChecker],
    ids=["keys", "offsets", "attempts"],
)
def test_a_backoff_that_outlives_the_attempts_is_refused(make):
    """They would be forgotten before the retry comes, and no message would be dead."""
    checker = make(retention_s=RETENTION_S)
    with pytest.raises(
        ConfigurationError, match=r"may wait 3600 s .*retention_s=3600.*max_attempts=3.*maximum_s"
    ):
        failing(checker, RETENTION_S, 3).check()
    failing(checker, RETENTION_S, 2).check()  # it waits once, for half as long
    failing(checker, RETENTION_S, 1).check()


def test_a_parked_key_is_collected_if_the_user_says_so(store):
    checker = store.leased(lease_s=60.0, retention_s=RETENTION_S, dead_retention_s=RETENTION_S)
    checker.protocol.abandon(
        checker.protocol.claim(ClaimRequest(KEY, status=KeyStatus.IN_PROGRESS_PARK)).claim
    )
    store.age(RETENTION_S * 2)
    assert ask(checker, on_lapsed=Lapsed.PARK) is Verdict.DEAD
    checker.garbage_collect()
    assert ask(checker) is Verdict.DEAD
    store.age(RETENTION_S * 2)
    checker.garbage_collect()
    assert ask(checker) is Verdict.ACQUIRED


@pytest.mark.parametrize("dead_retention_s", [None, RETENTION_S * 100])
def test_a_key_that_a_person_resolves_late_is_remembered_from_then(made, dead_retention_s):
    store, make = made
    checker = make(retention_s=RETENTION_S, dead_retention_s=dead_retention_s)
    kill(checker)
    store.age(RETENTION_S * 2)
    admin = checker.admin()
    assert admin.mark_done(admin.get(KEY))
    checker.garbage_collect()
    assert ask(checker) is Verdict.DUPLICATE
    store.age(RETENTION_S * 2)
    checker.garbage_collect()
    assert ask(checker) is Verdict.ACQUIRED


def test_a_lapsed_key_that_a_person_resolves_late_is_remembered_from_then(store):
    checker = store.leased(lease_s=60.0, retention_s=RETENTION_S)
    checker.protocol.abandon(
        checker.protocol.claim(ClaimRequest(KEY, status=KeyStatus.IN_PROGRESS_PARK)).claim
    )
    store.age(RETENTION_S * 2)
    admin = checker.admin()
    assert admin.mark_done(admin.get(KEY))
    checker.garbage_collect()
    assert ask(checker) is Verdict.DUPLICATE


@pytest.mark.parametrize("kind", SQL)
def test_a_failure_noted_while_its_key_is_collected_is_kept(kind, request):
    for store in open_store(kind, request, reuse=True):
        checker = store.leased()
        claim = checker.protocol.claim(ClaimRequest(KEY)).claim
        before_us = claim.fence - 1
        assert checker.protocol.release(claim, Failure("no", 9)).attempts == 1
        delete = partial(checker._keys.failures.delete, hashes=[KEY.hash], before_us=before_us)
        checker.store.connections.run(delete)
        assert checker.admin().get(KEY) is None
        claim = checker.protocol.claim(ClaimRequest(KEY)).claim
        assert checker.protocol.release(claim, Failure("no", 9)).attempts == 2
