"""Drivers in processes of their own: at once, killed, paused and fenced. Each key is published once."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from idempotent.adapters.spark.ledger import OnConflict, RunState
from idempotent.adapters.spark.ledger.run_claims import RowVerdict, RunClaims
from idempotent.errors import RunConflictError
from tests.adapters.spark.ledger.ledgers import SHARED, Place, open_place
from tests.adapters.spark.ledger.sparkless_driver import STEPS, Job, key_hash, published, run_job
from tests.support.forked import Forked, context

KEYS = range(300)
TRIALS = 20
# More than the leases of 1 s. Less than the 30 s that SQLite waits for a driver that was paused within a statement.
PAUSE_S = 10.0


@pytest.fixture(params=SHARED)
def place(request) -> Iterator[Place]:
    with contextmanager(open_place)(request.param, request) as place:
        yield place


@pytest.fixture
def output(tmp_path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def wait_for_pause(process: Forked) -> None:
    """Until it is paused, or has ended."""
    deadline = time.monotonic() + 150
    while process.poll() is None and not process.is_paused():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def resumed(*processes: Forked) -> list[int]:
    """Their exit codes. A process with several tasks may reach its step again, and pause again.

    It counts rounds, and reads no clock: a machine that was paused must not end the patience.
    """
    for _ in range(7500):
        running = [each for each in processes if each.poll() is None]
        if not running:
            break
        for each in running:
            each.send_signal(signal.SIGCONT)
        time.sleep(0.02)
    return [process.wait(30) for process in processes]


def demand_each_once(place: Place, output: Path, run_id: str, keys: range = KEYS) -> None:
    assert published(output)[run_id] == list(keys)
    ledger = place.ledger()
    row = ledger.store.newest("orders", run_id)
    assert row is not None
    assert row.state is RunState.COMMITTED
    other = ledger.begin("orders", f"after {run_id}", lease_s=60.0).ref
    verdicts = RunClaims(ledger, other).decide([key_hash(key) for key in keys])
    assert verdicts == [RowVerdict.DUPLICATE] * len(keys)
    ledger.abort(other)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["half claimed", "claimed", "published"])
def test_a_driver_that_was_paused_and_taken_over_is_told_so(place, output, tmp_path, step):
    job = Job(place.config(), "r1", KEYS, str(output), kill_at=step, signal=signal.SIGSTOP)
    with ExitStack() as processes:
        first = Forked(run_job, job, folder=tmp_path)
        processes.callback(first.close)
        wait_for_pause(first)
        assert first.poll() is None, first.err
        run_job(replace(job, kill_at=None, takeover=True))
        assert resumed(first) == [1]
        assert "RunFencedError" in first.err
        assert "taken over by another driver" in first.err
    demand_each_once(place, output, "r1")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_drivers_that_are_paused_and_killed_at_random_publish_each_key_once(place, output, tmp_path):
    chance, fenced = random.Random(20), 0
    for trial in range(TRIALS):
        run_id, keys = f"r{trial}", range(trial * 300, (trial + 1) * 300)
        job = Job(place.config(), run_id, keys, str(output), lease_s=1.0, tasks=2, slow_s=0.05)
        step, strike = chance.choice(STEPS[:-1]), chance.choice((signal.SIGSTOP, signal.SIGKILL))
        with ExitStack() as processes:
            first = Forked(run_job, replace(job, kill_at=step, signal=strike), folder=tmp_path)
            processes.callback(first.close)
            time.sleep(chance.uniform(0, 0.3))
            second = Forked(run_job, replace(job, takeover=chance.random() < 0.5), folder=tmp_path)
            processes.callback(second.close)
            if strike == signal.SIGSTOP:
                wait_for_pause(first)
                second.join(PAUSE_S)
            codes = resumed(first, second)
            for code, process in zip(codes, (first, second), strict=True):
                assert code in (0, 1, -signal.SIGKILL)
                assert code != 1 or "taken over by another driver" in process.err
            fenced += 1 in codes
            if 0 not in codes:
                run_job(job)
        demand_each_once(place, output, run_id, keys)
    assert fenced > 0


@pytest.mark.slow
def test_processes_with_tasks_publish_each_key_once(place, output, tmp_path):
    jobs = [
        Job(
            place.config(),
            f"r{number}",
            range(number * 100, number * 100 + 300),
            str(output),
            tasks=2,
        )
        for number in range(4)
    ]
    together = context.Barrier(len(jobs))
    with ExitStack() as processes:
        started = [Forked(run_job, job, together, folder=tmp_path) for job in jobs]
        for process in started:
            processes.callback(process.close)
        assert [process.wait(300) for process in started] == [0] * len(jobs)
        said = [line for process in started for line in process.err.splitlines()]
        assert all(line.startswith("run_waits ") for line in said), said
    count = Counter(key for new in published(output).values() for key in new)
    assert count == dict.fromkeys(range(600), 1)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_driver_killed_at_any_step_is_run_again_to_the_same_end(place, output, tmp_path, step):
    config = place.config()
    run_job(Job(config, "before", range(100), str(output)))
    job = Job(config, "killed", range(50, 450), str(output), lease_s=0.2)
    process = Forked(run_job, Job(**{**vars(job), "kill_at": step}), folder=tmp_path)
    try:
        assert process.wait(150) == -9, process.err
    finally:
        process.close()
    after = Job(config, "after", range(400, 500), str(output))
    if step in ("prepared", "half published", "published"):
        # A run that may have published cannot be taken over: others wait until it has run again.
        ledger = place.ledger()
        ref = ledger.begin("orders", "impatient", lease_s=60.0).ref
        with pytest.raises(RunConflictError, match="PREPARED"):
            RunClaims(ledger, ref, on_conflict=OnConflict.FAIL).decide([key_hash(420)])
        run_job(job)
        run_job(after)
    else:
        run_job(after)  # takes over what an OPEN one left
        run_job(job)
    once = published(output)
    assert Counter(key for new in once.values() for key in new) == dict.fromkeys(range(500), 1)
    run_job(job)
    run_job(after)
    assert published(output) == once
