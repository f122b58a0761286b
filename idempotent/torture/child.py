"""A consuming process: `python -m idempotent.torture.child`, with its job on the first line of standard input.

Each further line is a crash plan for this process, or null to cancel it. The end of standard input ends the process.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection, insert
from sqlalchemy.exc import SQLAlchemyError

from idempotent.consumer import current_claim
from idempotent.message import Message, Position
from idempotent.policy import Backoff
from idempotent.registry import Registry
from idempotent.testing.crashpoints import AckPoints, CrashPlan, arm, around, crash_points
from idempotent.testing.stage.places import place_at
from idempotent.torture.clocks import sleep_by_the_right_clock
from idempotent.torture.journal import Journal, JournalObserver, What
from idempotent.torture.settings import GROUP, SLOW, Job
from idempotent.torture.stores import Store, effects_table
from idempotent.torture.traffic import Behaviour
from idempotent.worker import Worker

# Kills and failures alone never use up the attempts: only poison becomes a dead letter.
_ATTEMPTS: Final = 100_000
_BACKOFF: Final = Backoff(initial_s=0.1, maximum_s=1.0)
_FAILS: Final = 0.6
_LONGEST_MOMENT_S: Final = 0.004
_GC_EVERY_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.2
_STARVED_S: Final = 0.8


class FlakyError(Exception):
    """A temporary failure."""


class PoisonError(Exception):
    """A permanent failure."""


def _fails(behaviour: Behaviour) -> bool:
    if behaviour in (Behaviour.FLAKY, Behaviour.UNDONE):
        return random.random() < _FAILS
    return behaviour is Behaviour.POISON


def _dawdle(behaviour: Behaviour, lease_s: float) -> None:
    """Take some time, so that faults of the process hit its handler."""
    time.sleep(lease_s * SLOW if behaviour is Behaviour.SLOW else random.random() * _LONGEST_MOMENT_S)


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
    """Consume until a signal comes.

    With a leased checker, effects go to the journal, outside of its store; with a transactional one into its database,
    in the transaction of the key.
    """
    registry = Registry()
    for observer in (JournalObserver(journal), AckPoints()):
        registry.observers.add(observer)
    store = Store(job.checker_url, job.name, lease_s=job.lease_s)
    register = registry.consumer(
        job.name,
        group=GROUP,
        checker=crash_points(store.checker()),
        retry_for=(FlakyError, SQLAlchemyError),
        max_attempts=_ATTEMPTS,
        backoff=_BACKOFF,
    )
    begun: Counter[str] = Counter()
    table = effects_table(job.name)

    def run(message: Message, write: Callable[[dict[str, Any]], object]) -> None:
        known_as = str(message.id)
        begun[known_as] += 1
        behaviour = Behaviour(message.json()["behaviour"])
        place = str(message.position) if isinstance(message.position, Position) else ""
        fails = _fails(behaviour)
        _dawdle(behaviour, job.lease_s)
        if fails:
            journal.write(What.RAISED, id=known_as, position=place)
        if fails and not (store.is_transactional and behaviour is Behaviour.UNDONE):
            raise PoisonError("always") if behaviour is Behaviour.POISON else FlakyError("before the effect")
        around(write, "effect")(
            {
                "id": known_as,
                "position": place,
                "process": job.process,
                "attempt": begun[known_as],
                "fence": current_claim().fence,
            }
        )
        if fails:
            raise FlakyError("after the effect")

    def in_journal(message: Message) -> None:
        run(message, lambda effect: journal.write(What.EFFECT, **effect))

    def in_database(message: Message, connection: Connection) -> None:
        def write(effect: dict[str, Any]) -> None:
            times = {"at": time.monotonic(), "wall": time.time()}
            connection.execute(insert(table), effect | times)

        run(message, write)

    register(in_database if store.is_transactional else in_journal)
    adapter = place_at(job.broker_url, job.name, job.batch_size).adapter()
    Worker(registry, adapter, job.concurrency, job.batch_size, gc_interval_s=_GC_EVERY_S).run()
    registry.close()


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
