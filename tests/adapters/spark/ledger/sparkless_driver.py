"""A driver without Spark: claims in tasks, publishes a file by run_id, and may be killed at any step."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path

from idempotent.adapters.spark.ledger import RunLedger, RunState, StoreConfig, open_ledger
from idempotent.adapters.spark.ledger.run_claims import RowVerdict, RunClaims
from idempotent.adapters.spark.ledger.runs import RunRef
from idempotent.errors import RunConflictError, RunFencedError

STEPS = ("begun", "half claimed", "claimed", "prepared", "half published", "published", "committed")
CHUNK = 100


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        config: of the ledger.
        run_id: of the run.
        keys: numbers of its keys.
        output: folder to which it publishes.
        lease_s: of the run.
        kill_at: a step at which its process is killed.
        tasks: that claim at the same time.
        takeover: fence the driver that has the run.
        signal: that its process gets at `kill_at`.
        slow_s: longest sleep after a step, so that a signal meets any of them.
    """

    config: StoreConfig
    run_id: str
    keys: range
    output: str
    lease_s: float = 60.0
    kill_at: str | None = None
    tasks: int = 1
    takeover: bool = False
    signal: int = signal.SIGKILL
    slow_s: float = 0.0

    def reach(self, step: str) -> None:
        if step == self.kill_at:
            # To this thread: the process would stop a moment later, perhaps within its next transaction.
            signal.pthread_kill(threading.get_ident(), self.signal)
        time.sleep(random.uniform(0, self.slow_s))


def key_hash(number: int) -> bytes:
    return random.Random(number).randbytes(20)


def run_job(job: Job, together: Barrier | None = None) -> None:
    """Run the job to its end; begin it again after an abort, and after a wait in vain, which may be a deadlock."""
    with open_ledger(job.config) as ledger:
        if together is not None:
            together.wait(150)
        while True:
            try:
                return _run(job, ledger)
            except RunFencedError as error:
                if "taken over" in str(error):
                    raise  # another driver has the run
                continue
            except RunConflictError:
                row = ledger.store.newest("orders", job.run_id)
                assert row is not None
                with contextlib.suppress(RunFencedError):
                    ledger.abort(row.ref)
                time.sleep(random.uniform(0, 0.5))


def published(output: Path) -> dict[str, list[int]]:
    """The published keys, by run."""
    return {path.stem: json.loads(path.read_text()) for path in output.glob("*.json")}


def _run(job: Job, ledger: RunLedger) -> None:
    row = ledger.begin(
        "orders",
        job.run_id,
        lease_s=job.lease_s,
        fingerprint=repr(job.keys).encode(),
        wait_s=150.0,
        takeover=job.takeover,
    )
    ref = row.ref
    job.reach("begun")
    if row.state is RunState.COMMITTED:
        return
    if row.state is RunState.OPEN:
        _stage(job, ledger, ref)
    job.reach("prepared")
    row = ledger.store.newest("orders", job.run_id)
    assert row is not None
    target = Path(job.output, f"{job.run_id}.json")
    staging = target.with_suffix(f".{os.getpid()}")
    staging.write_bytes(row.manifest or b"")
    job.reach("half published")
    staging.rename(target)
    job.reach("published")
    ledger.commit(ref, str(target))
    job.reach("committed")


def _stage(job: Job, ledger: RunLedger, ref: RunRef) -> None:
    parts = [job.keys[task :: job.tasks] for task in range(job.tasks)]
    with ThreadPoolExecutor(job.tasks) as pool:
        new = [key for part in pool.map(lambda part: _task(job, ledger, ref, part), parts) for key in part]
    job.reach("claimed")
    ledger.prepare(ref, rows=len(new), manifest=json.dumps(sorted(new)).encode())


def _task(job: Job, ledger: RunLedger, ref: RunRef, part: range) -> list[int]:
    claims = RunClaims(ledger, ref, poll_s=0.02, timeout_s=random.uniform(0.2, 1))
    keys = list(part)
    random.shuffle(keys)
    new: list[int] = []
    for start in range(0, len(keys), CHUNK):
        chunk = keys[start : start + CHUNK]
        verdicts = claims.decide([key_hash(key) for key in chunk])
        new += [key for key, verdict in zip(chunk, verdicts, strict=True) if verdict is RowVerdict.NEW]
        job.reach("half claimed")
    return new
