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

from sqlalchemy import insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.orm import registry as registry_of_rows

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
from idempotent.torture.traffic import Behaviour, headers_of, is_slow, subjects_of
from idempotent.worker import Worker

# Kills and failures alone never use up the attempts: only poison becomes a dead letter.
_ATTEMPTS: Final = 100_000
_BACKOFF: Final = Backoff(initial_s=0.1, maximum_s=1.0)
_FAILS: Final = 0.6
_LONGEST_MOMENT_S: Final = 0.004
_LONGEST_SLOW_S: Final = 0.08
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


def _dawdle(behaviour: Behaviour, lease_s: float, *, slowly: bool) -> None:
    """Take some time, so that faults of the process hit its handler."""
    moment_s = random.random() * (_LONGEST_SLOW_S if slowly else _LONGEST_MOMENT_S)
    time.sleep(lease_s * SLOW if behaviour is Behaviour.SLOW else moment_s)


def _behaviour_in(message: Message) -> Behaviour:
    return Behaviour(message.json()["behaviour"])


def _check_headers(message: Message, journal: Journal) -> None:
    for name, value in headers_of(message.json()["number"]).items():
        if message.headers.get(name) != value:
            found = message.headers.get(name)
            journal.write(What.WRONG, id=message.id, error=f"the header {name} is {found!r}")


class _Row:
    """A row of the effects, as an object of a Session."""

    def __init__(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)


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
    checker = crash_points(store.checker())
    begun: Counter[str] = Counter()
    table = effects_table(job.name)
    registry_of_rows().map_imperatively(_Row, table)

    def run(message: Message, write: Callable[[dict[str, Any]], object]) -> str:
        known_as = str(message.id)
        begun[known_as] += 1
        _check_headers(message, journal)
        behaviour = _behaviour_in(message)
        place = str(message.position) if isinstance(message.position, Position) else ""
        fails = _fails(behaviour)
        _dawdle(behaviour, job.lease_s, slowly=is_slow(message.subject))
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
        return known_as

    def in_journal(message: Message) -> str:
        return run(message, lambda effect: journal.write(What.EFFECT, **effect))

    def in_database(message: Message, session: Session) -> str:
        behaviour = _behaviour_in(message)
        if behaviour is Behaviour.FORGETFUL:
            session.expunge_all()

        def write(effect: dict[str, Any]) -> None:
            row = effect | {"at": time.monotonic(), "wall": time.time()}
            if behaviour is Behaviour.UNSENT:
                session.add(_Row(row))
            else:
                session.execute(insert(table), row)

        return run(message, write)

    for subject in subjects_of(job.name):
        registry.consumer(
            subject,
            group=GROUP,
            checker=checker,
            retry_for=(FlakyError, SQLAlchemyError),
            max_attempts=_ATTEMPTS,
            backoff=_BACKOFF,
            store_result=job.results,
        )(in_database if store.is_transactional else in_journal)
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
