"""Waits for other runs: who is waited for is said, and all tries of a task together wait for `wait_s`."""

import re
import time
from contextlib import contextmanager

import pytest

from idempotent.adapters.spark.ledger import RunLedger
from idempotent.adapters.spark.ledger.run_claims import RowVerdict, RunClaims
from idempotent.adapters.spark.ledger.runs import RunRef, this_driver
from idempotent.adapters.spark.ledger.waits import Patience
from idempotent.errors import RunConflictError, UnpublishedClaimsError
from tests.adapters.spark.ledger.contract.base import LONG_S, keys
from tests.adapters.spark.ledger.ledgers import ALL, open_place
from tests.adapters.spark.ledger.memory import MemoryRunStore
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
    ledger = RunLedger(ledger.store, sleep=clock.sleep, monotonic=clock.monotonic)
    claims = RunClaims(ledger, ref, timeout_s=timeout_s, poll_s=0.1)
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
    with pytest.raises(UnpublishedClaimsError, match="claimed 3 keys, and 2 rows") as raised:
        ledger.prepare(ref, rows=2)
    assert "run 'r1' of consumer 'orders'" in str(raised.value)
    assert str(raised.value).endswith("Type: idempotent runs show r1 --consumer orders")
    ledger.prepare(ref, rows=3)


@pytest.mark.parametrize("prepared", [False, True])
def test_the_line_and_the_error_say_which_run_has_the_keys_and_which_driver_until_when(
    ledger, caplog, prepared
):
    hashes = keys(1)
    other, ref = begin(ledger, "it's"), begin(ledger, "r1")
    RunClaims(ledger, other).decide(hashes)
    if prepared:
        ledger.prepare(other)
    error = tried(ledger, ref, hashes, Clock())
    (told,) = logged(caplog, "run_waits")
    state = "PREPARED" if prepared else "OPEN"
    who = (
        rf"""run "it's", which is {state} \(driver {re.escape(this_driver())} has it until """
        r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00, [23]\d\d\.\d s from now, unless it renews its lease\)"
    )
    assert re.search(who, told.reason), told.reason
    assert told.run == str(ref)
    assert re.search(who, error), error
    assert error.endswith("""Type: idempotent runs show 'it'"'"'s' --consumer orders""")
    ledger.end_lease(other)
    if prepared:
        assert f"the lease of driver {this_driver()} ended" in tried(
            ledger, begin(ledger, "r2"), hashes, Clock()
        )


def test_a_driver_that_waits_for_another_says_who_has_the_run(ledger, caplog):
    begin(ledger, "r1")
    with pytest.raises(
        RunConflictError, match=rf"driver {re.escape(this_driver())} has it until 20\d\d-"
    ) as raised:
        begin(ledger, "r1", wait_s=0.1)
    (told,) = logged(caplog, "run_waits")
    assert told.reason.startswith("run 'r1' of consumer 'orders', generation 1, epoch 1 is OPEN")
    assert "takeover=True" in str(raised.value)


def test_a_driver_that_waits_for_another_begins_when_the_lease_ends_and_not_a_poll_later(ledger):
    lease_s, slept = 0.7, []

    def sleep(duration_s):
        slept.append(duration_s)
        time.sleep(duration_s)

    ledger.begin("orders", "r1", lease_s=lease_s)
    row = RunLedger(ledger.store, sleep=sleep).begin("orders", "r1", lease_s=LONG_S, wait_s=60.0)
    assert row.ref.epoch == 2
    assert sum(slept) < lease_s + 0.1, slept


def test_a_long_wait_is_said_at_once_and_then_once_a_minute(caplog):
    clock, ref = Clock(), RunRef("orders", "r1", 1, 4711, 1)
    patience = Patience(150.0, sleep=clock.sleep, monotonic=clock.monotonic)
    while patience.wait(ref, lambda: "somebody", 0.5):
        pass
    assert clock.now == 150.0
    assert [told.wait_s for told in logged(caplog, "run_waits")] == [150.0, 90.0, 30.0]
    assert not RunLedger(MemoryRunStore()).patience(0.0).wait(ref, lambda: "somebody", 0.5)


def test_a_wait_that_is_ordinary_is_said_when_it_is_long_and_its_end_if_it_was_said(caplog):
    caplog.set_level("INFO")
    ref = RunRef("orders", "r1", 1, 4711, 1)
    for waits_s, told, over in ((9.5, [], []), (12.0, [140.0], [12.0])):
        caplog.clear()
        clock = Clock()
        patience = Patience(150.0, sleep=clock.sleep, monotonic=clock.monotonic)
        while clock.now < waits_s:
            assert patience.wait(ref, lambda: "other tasks", 0.5, quiet_s=10.0)
        patience.over(ref)
        assert [each.wait_s for each in logged(caplog, "run_waits")] == told
        assert [each.waited_s for each in logged(caplog, "run_waited")] == over
