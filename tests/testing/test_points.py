"""A thread that goes through a checker's hooks passes each point once."""

import asyncio
import threading

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.checkers import MemoryChecker, SqlChecker, TransactionalSqlChecker
from idempotent.checkers.hooks import CheckerHooks
from idempotent.claims import ClaimRequest, KeyStatus
from idempotent.keys import KeySpace
from idempotent.testing import around, crash_points

KEYS = KeySpace("orders", "tests")


class Points:
    """A plan whose point records what it is compared with, and is never reached."""

    def __init__(self):
        self.point = self
        self.passed = []

    def __ne__(self, point):
        self.passed.append(point)
        return True


def passed(checker, use):
    """The points that a checker passes while it is used."""
    points = Points()
    use(crash_points(checker, points))
    return points.passed


def a_round(checker):
    """A group whose first message is released, and whose second is completed."""
    first, second = checker.protocol.claim_many([ClaimRequest(KEYS.key(name)) for name in "12"])
    checker.protocol.release(first.claim)
    checker.protocol.complete(second.claim)


def test_hooks_that_call_each_other_pass_a_point_once():
    class OneByOne(MemoryChecker):
        _claim_many = CheckerHooks._claim_many

    steps = ("claim", "release", "complete")
    expected = [f"{when}_{step}" for step in steps for when in ("before", "after")]
    assert passed(OneByOne(), a_round) == expected


def test_leases_are_renewed_between_points():
    renewed = threading.Event()

    class Renewing(MemoryChecker):
        def _renew_many(self, claims):
            renewed.set()
            return super()._renew_many(claims)

    def hold(checker):
        claim = checker.protocol.claim(ClaimRequest(KEYS.key("1"))).claim
        assert renewed.wait(10)
        checker.protocol.complete(claim)
        checker.close()

    assert "before_renew" in passed(Renewing(lease_s=0.2), hold)


def test_a_claim_of_no_key_and_an_ignored_failure_commit_between_points(database):
    checker = TransactionalSqlChecker(f"sqlite:///{database}")
    request = ClaimRequest(KEYS.key("1"), status=KeyStatus.DONE)

    def nothing(checker):
        checker.protocol.complete(checker.claim_nothing())

    def ignore(checker):
        checker.ignore(request, checker.claim_nothing())

    commit = ["before_complete", "before_commit", "after_commit", "after_complete"]
    assert passed(checker, nothing) == commit
    checker.close()
    other = TransactionalSqlChecker(f"sqlite:///{database}")
    assert passed(other, ignore) == ["before_claim", "after_claim", *commit]
    other.close()


@pytest.mark.parametrize("kind", ["memory", "sql"])
def test_an_async_handler_and_its_checker_pass_the_points_in_order(kind, database):
    points = Points()
    checker = crash_points(
        MemoryChecker() if kind == "memory" else SqlChecker(f"sqlite:///{database}"), points
    )

    async def handle(message):
        points.passed.append("runs")
        await asyncio.sleep(0)
        points.passed.append("ends")

    consumer = Registry().consumer("orders", checker=checker)(around(handle, "effect", points))
    assert asyncio.run(consumer.process(Message("orders", id="1"))).outcome is Outcome.PROCESSED
    checker.close()
    assert [point for point in points.passed if "commit" not in point] == [
        "before_claim",
        "after_claim",
        "before_effect",
        "runs",
        "ends",
        "after_effect",
        "before_complete",
        "after_complete",
    ]


def test_an_async_handler_that_raises_does_not_pass_the_point_after_it():
    points = Points()

    async def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(around(fail, "effect", points)())
    assert points.passed == ["before_effect"]
