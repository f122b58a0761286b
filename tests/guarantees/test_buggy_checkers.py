"""A checker's hook with a bug: nothing gets a verdict by it, and no worker ends."""

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.checkers import MemoryChecker
from idempotent.claims import Claim, Decision, Verdict
from idempotent.errors import StoreError

MESSAGES = [Message("orders", id="1"), Message("orders", id="2")]


def broken(*_):
    raise KeyError("a bug")


def consumer_of(hook, wrong, handle=lambda _: None):
    checker = type("Buggy", (MemoryChecker,), {hook: lambda _, *arguments: wrong(*arguments)})()
    return Registry().consumer("orders", checker=checker)(handle)


@pytest.mark.parametrize("wrong", [broken, lambda _: None], ids=["raises", "answers nothing"])
def test_a_broken_claim_runs_nothing(wrong):
    ran = []
    result = consumer_of("_claim", wrong, ran.append).process(MESSAGES[0])
    assert result.outcome is Outcome.UNAVAILABLE
    assert isinstance(result.error, StoreError)
    assert "a bug in Buggy" in str(result.error)
    assert not ran


def test_a_broken_claim_of_many_runs_nothing():
    ran = []
    results = consumer_of("_claim_many", broken, ran.append).process_many(MESSAGES)
    assert [result.outcome for result in results] == [Outcome.UNAVAILABLE] * 2
    assert not ran


@pytest.mark.parametrize("hook", ["_complete", "_complete_many"])
def test_a_broken_completion_is_not_processed_and_does_not_run_again(hook):
    ran = []
    consumer = consumer_of(hook, broken, ran.append)
    some = MESSAGES[:1] if hook == "_complete" else MESSAGES
    for _ in range(2):
        results = [consumer.process(some[0])] if hook == "_complete" else consumer.process_many(some)
        assert all(result.outcome is not Outcome.PROCESSED for result in results)
    assert len(ran) == len(some)


def test_a_broken_release_is_a_failure_all_the_same():
    def fails(_):
        raise ValueError("no")

    result = consumer_of("_release", broken, fails).process(MESSAGES[0])
    assert (result.outcome, type(result.error)) == (Outcome.FAILED, ValueError)


def some_of(*_):
    return [Decision(Verdict.ACQUIRED, Claim(None))]


NO_ANSWERS = {
    "nothing": lambda *_: None,
    "too few": some_of,
    "an empty list": lambda *_: [],
    "other objects": lambda *_: ["a", "b"],
    "a text": lambda *_: "ab",
    "an iterator": lambda *_: iter(()),
}


@pytest.mark.parametrize("wrong", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_a_claim_of_many_with_another_answer_runs_nothing(wrong):
    ran = []
    results = consumer_of("_claim_many", wrong, ran.append).process_many(MESSAGES)
    for result in results:
        assert (result.outcome, type(result.error)) == (Outcome.UNAVAILABLE, StoreError)
        assert "a bug in Buggy: TypeError: _claim_many" in str(result.error)
    assert not ran


@pytest.mark.parametrize("wrong", [*NO_ANSWERS.values(), lambda *_: [None, None]], ids=[*NO_ANSWERS, "Nones"])
def test_a_completion_of_many_with_another_answer_is_offered_again_and_does_not_run_again(wrong):
    ran = []
    consumer = consumer_of("_complete_many", wrong, ran.append)
    for _ in range(2):
        assert Outcome.PROCESSED not in {each.outcome for each in consumer.process_many(MESSAGES)}
    assert len(ran) == 2


def test_a_completion_that_answers_nothing_does_not_run_again():
    ran = []
    consumer = consumer_of("_complete", lambda *_: None, ran.append)
    first = consumer.process(MESSAGES[0])
    assert (first.outcome, "a bug in Buggy" in str(first.error)) == (Outcome.UNAVAILABLE, True)
    assert consumer.process(MESSAGES[0]).outcome is Outcome.IN_PROGRESS
    assert len(ran) == 1


def fails(_):
    raise ValueError("no")


@pytest.mark.parametrize("wrong", NO_ANSWERS.values(), ids=NO_ANSWERS)
@pytest.mark.parametrize("hook", ["_release", "_release_many"])
def test_a_release_with_another_answer_is_a_failure_all_the_same(hook, wrong, caplog):
    consumer = consumer_of(hook, wrong, fails)
    results = [consumer.process(MESSAGES[0])] if hook == "_release" else consumer.process_many(MESSAGES)
    assert [(each.outcome, type(each.error)) for each in results] == [(Outcome.FAILED, ValueError)] * len(
        results
    )
    assert any("a bug in Buggy" in vars(record).get("error", "") for record in caplog.records)


@pytest.mark.parametrize("wrong", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_a_death_too_many_that_is_recorded_with_another_answer_runs_nothing(wrong):
    now, ran = [1e9], []
    buggy = type("Buggy", (MemoryChecker,), {"_release": lambda _, *arguments: wrong(*arguments)})
    checker = buggy(lease_s=1, clock=lambda: now[0])
    consumer = Registry().consumer("orders", checker=checker, max_deaths=1)(ran.append)
    checker._claim(consumer.binding.requests.of(MESSAGES[0]))
    now[0] += 2
    assert consumer.process(MESSAGES[0]).outcome is Outcome.UNAVAILABLE
    assert not ran
