"""A checker that remembers nothing that is done, and counts what fails."""

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.checkers import AttemptChecker, checker_from_url
from idempotent.errors import ConfigurationError
from idempotent.message import Position
from idempotent.policy import Backoff


def message(offset=0):
    return Message("orders", id="same", position=Position("topic", 0, offset, offset))


def consumer(handler, checker, **options):
    return Registry().consumer("orders", group="billing", checker=checker, **options)(handler)


def test_what_is_done_runs_again():
    runs = []
    handle = consumer(runs.append, checker := AttemptChecker())
    assert [handle.process(message()).outcome for _ in range(3)] == [Outcome.PROCESSED] * 3
    assert len(runs) == 3
    assert not checker.entries


def test_messages_are_known_by_their_position_in_a_group_too():
    runs = []
    handle = consumer(runs.append, AttemptChecker())
    results = handle.process_many([message(0), message(1), message(2)])
    assert [result.outcome for result in results] == [Outcome.PROCESSED] * 3
    assert len(runs) == 3


def test_attempts_are_counted_until_it_is_done_or_dead():
    failures = [ValueError(), ValueError(), None, ValueError(), ValueError(), ValueError()]

    def fail(_):
        if (error := failures.pop(0)) is not None:
            raise error

    handle = consumer(fail, checker := AttemptChecker(), max_attempts=3, backoff=Backoff(0.0, 0.0))
    outcomes = [handle.process(message()).outcome for _ in range(7)]
    failed, dead = Outcome.FAILED, Outcome.DEAD
    assert outcomes == [failed, failed, Outcome.PROCESSED, failed, failed, dead, dead]
    assert len(checker.entries) == 1


def test_one_message_does_not_run_twice_at_once():
    checker, outcomes = AttemptChecker(), []

    def handle(_):
        outcomes.append(again.process(message()).outcome)

    again = consumer(handle, checker)
    assert again.process(message()).outcome is Outcome.PROCESSED
    assert outcomes == [Outcome.IN_PROGRESS]


def test_it_has_a_url():
    checker = checker_from_url("attempts://", lease_s=5.0)
    assert isinstance(checker, AttemptChecker)
    assert checker.lease_s == 5.0


def test_it_has_no_use_for_keys():
    with pytest.raises(ConfigurationError, match="key= cannot go with AttemptChecker"):
        consumer(lambda _: None, AttemptChecker(), key=lambda _: "x").process(message())
