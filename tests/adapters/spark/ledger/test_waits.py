"""Waits for other runs: who is waited for is said, and all tries of a task together wait for `wait_s`."""

from contextlib import contextmanager

import pytest

from idempotent.adapters.spark.ledger import RowVerdict, RunClaims, RunRef
from idempotent.adapters.spark.ledger.waits import Patience
from idempotent.errors import RunConflictError, UnpublishedClaimsError
from tests.adapters.spark.ledger.contract.base import LONG_S, keys
from tests.adapters.spark.ledger.ledgers import ALL, open_place
from tests.support.logs import logged

WAIT_S = 0.2


@pytest.fixture(params=ALL)
def ledger(request):
    with contextmanager(open_place)(request.param, request) as place:
        yield place.ledger()


def begin(ledger, run_id, **options):
    return ledger.begin("orders", run_id, lease_s=LONG_S, **options).ref


class Clock:
    """A clock that only sleeps move."""

    def __init__(self):
        self.now = 0.0
        self.slept = []

    def sleep(self, duration_s):
        self.slept.append(duration_s)
        self.now += duration_s

    def monotonic(self):
        return self.now


def tried(ledger, ref, hashes, clock, timeout_s=WAIT_S):
    """A try of a task, in a process of its own, that waits in vain."""
    claims = RunClaims(
        ledger, ref, timeout_s=timeout_s, poll_s=0.1, sleep=clock.sleep, monotonic=clock.monotonic
    )
    with pytest.raises(RunConflictError, match="waited") as raised:
        claims.decide(hashes)
    return str(raised.value)


def test_a_task_that_is_tried_again_has_what_is_left_of_the_wait(ledger, caplog):
    hashes = keys(2)
    other, ref = begin(ledger, "other"), begin(ledger, "r1")
    RunClaims(ledger, other).decide(hashes)
    with pytest.raises(RunConflictError):
        RunClaims(ledger, ref, timeout_s=WAIT_S, poll_s=0.05).decide(hashes)
    for again in hashes, hashes[:1]:  # another task of the job as well
        clock = Clock()
        tried(ledger, ref, again, clock)
        assert not clock.slept, "it waits once more"
    assert len(logged(caplog, "run_waits")) == 1
    # Another attempt, which a driver has begun, waits anew; and so does this one for another run.
    later, clock = begin(ledger, "r1", takeover=True), Clock()
    tried(ledger, later, hashes, clock)
    assert sum(clock.slept) == pytest.approx(WAIT_S, abs=WAIT_S / 2)
    third, more, clock = begin(ledger, "third"), keys(1), Clock()
    RunClaims(ledger, third).decide(more)
    tried(ledger, later, more, clock)
    assert clock.slept


def test_what_keeps_the_wait_is_no_key_of_the_run(ledger):
    hashes, own = keys(2), keys(3)
    other, ref = begin(ledger, "other"), begin(ledger, "r1")
    RunClaims(ledger, other).decide(hashes)
    assert RunClaims(ledger, ref).decide(own) == [RowVerdict.NEW] * 3
    tried(ledger, ref, hashes, Clock())
    with pytest.raises(UnpublishedClaimsError, match="claimed 3 keys, and 2 rows"):
        ledger.prepare(ref, rows=2)
    ledger.prepare(ref, rows=3)


def test_a_long_wait_is_said_at_once_and_then_once_a_minute(caplog):
    clock, ref = Clock(), RunRef("orders", "r1", 1, 4711, 1)
    patience = Patience(150.0, sleep=clock.sleep, monotonic=clock.monotonic)
    while patience.wait(ref, lambda: "somebody", 0.5):
        pass
    assert clock.now == 150.0
    assert [told.wait_s for told in logged(caplog, "run_waits")] == [150.0, 90.0, 30.0]
    assert not Patience(0.0).wait(ref, lambda: "somebody", 0.5)
