"""A consuming process: `python -m idempotent.torture.child`, with its job on the first line of standard input.

Each further line is a crash plan for this process, or null to cancel it. The end of standard input ends the process.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from typing import Final

from idempotent.adapters.base import Adapter, Delivery
from idempotent.outcomes import Result
from idempotent.registry import Registry
from idempotent.testing.crashpoints import CrashPlan, arm, around, crash_points
from idempotent.testing.stage.places import place_at
from idempotent.torture.clocks import sleep_by_the_right_clock
from idempotent.torture.handlers import consumer_of
from idempotent.torture.held_messages import HeldMessages
from idempotent.torture.job import Job
from idempotent.torture.journal import Journal, What
from idempotent.torture.stores import Store
from idempotent.worker import Worker

_GC_EVERY_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.2
_STARVED_S: Final = 0.8


def main() -> None:
    """Read the job, and do it."""
    job = Job(**json.loads(sys.stdin.readline()))
    if job.shift_s:
        sleep_by_the_right_clock()
    logging.basicConfig(
        format=f"%(asctime)s {job.process} %(levelname)s %(message)s %(error)s", level="WARNING"
    )
    logging.getLogger().handlers[0].addFilter(_with_error)
    journal = Journal(job.journal, job.process)
    journal.write(What.STARTED)
    for task in (_follow_plans, lambda: _notice_starving(journal)):
        threading.Thread(target=task, daemon=True).start()
    consume(job, journal)


def consume(job: Job, journal: Journal) -> None:
    """Consume until a signal comes."""
    registry = Registry()
    store = Store(job.checker_url, job.name, lease_s=job.lease_s)
    checker = crash_points(store.checker())
    registry.observers.add(HeldMessages(journal))
    consumer_of(registry, job, store, checker, journal)
    adapter = place_at(job.broker_url, job.subject, job.batch_size).adapter()
    _journal_settlements(adapter, journal)
    Worker(registry, adapter, job.concurrency, job.batch_size, gc_interval_s=_GC_EVERY_S).run()
    registry.close()


def _journal_settlements(adapter: Adapter, journal: Journal) -> None:
    acknowledge = around(adapter.settle, "ack")

    def settle(delivery: Delivery, result: Result) -> None:
        message = delivery.message
        journal.write(
            What.SETTLED,
            id=message.id,
            position=str(message.position or ""),
            outcome=result.outcome.value,
            error=str(result.error or "")[:200],
        )
        acknowledge(delivery, result)

    adapter.settle = settle  # type: ignore[misc, method-assign]  # the journal is written before the broker knows


def _follow_plans() -> None:
    for line in sys.stdin:
        plan = json.loads(line)
        arm(CrashPlan.parse(plan) if plan else None)
    os._exit(1)  # the torture has ended and cannot stop this process any more


def _notice_starving(journal: Journal) -> None:
    while True:
        before = time.monotonic()
        time.sleep(_LOOK_EVERY_S)
        after = time.monotonic()
        if after - before > _STARVED_S:
            journal.write(What.STARVED, since=before)


def _with_error(record: logging.LogRecord) -> bool:
    record.error = getattr(record, "error", "")
    return True


if __name__ == "__main__":
    main()
