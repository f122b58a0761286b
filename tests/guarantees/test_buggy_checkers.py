"""A checker's hook with a bug: nothing gets a verdict by it, and no worker ends."""

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.checkers import MemoryChecker
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
