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
from idempotent.torture.stores import EffectStore, Outputs, effects_table, outputs_of, store_at
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


def _check_headers(message: Message, journal: Journal, *, has_bytes: bool) -> None:
    for name, value in headers_of(message.json()["number"], has_bytes=has_bytes).items():
        if message.headers.get(name) != value:
            found = message.headers.get(name)
            journal.write(What.WRONG, id=message.id, error=f"the header {name} is {found!r}")


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
    for observer in (JournalObserver(journal), AckPoints()):
        registry.observers.add(observer)
    store = store_at(job.checker_url, job.broker_url, job.name, lease_s=job.lease_s)
    checker = crash_points(store.checker())
    place = place_at(job.broker_url, job.name, job.batch_size)
    handlers = _Handlers(job, journal, store, has_bytes=place.has_bytes)
    for subject in subjects_of(job.name):
        registry.consumer(
            subject,
            group=GROUP,
            checker=checker,
            retry_for=(FlakyError, SQLAlchemyError),
            max_attempts=_ATTEMPTS,
            backoff=_BACKOFF,
            store_result=job.results,
        )(handlers.chosen)
    Worker(registry, place.adapter(), job.concurrency, job.batch_size, gc_interval_s=_GC_EVERY_S).run()
    registry.close()


class _Handlers:
    """The handlers of one process; they differ in where their effects go."""

    def __init__(self, job: Job, journal: Journal, store: EffectStore, *, has_bytes: bool) -> None:
        self._job = job
        self._journal = journal
        self._store = store
        self._has_bytes = has_bytes
        self._begun: Counter[str] = Counter()
        self._table = effects_table(job.name)
        base = registry_of_rows().generate_base()
        self._row: Callable[..., object] = type("Row", (base,), {"__table__": self._table})

    @property
    def chosen(self) -> Callable[..., Any]:
        """The handler for this store."""
        if isinstance(self._store, Outputs):
            return self._in_topic
        return self._in_database if self._store.is_transactional else self._in_journal

    def _in_journal(self, message: Message) -> str:
        """With a leased checker: an effect outside of its store."""
        return self._run(message, lambda effect: self._journal.write(What.EFFECT, **effect))

    def _in_database(self, message: Message, session: Session) -> str:
        """With a transactional checker: an effect in the transaction of the key."""
        behaviour = _behaviour_in(message)
        if behaviour is Behaviour.FORGETFUL:
            session.expunge_all()

        def write(effect: dict[str, Any]) -> None:
            if behaviour is Behaviour.UNSENT:
                session.add(self._row(**_timed(effect)))
            else:
                session.execute(insert(self._table), _timed(effect))

        return self._run(message, write)

    def _in_topic(self, message: Message) -> Message:
        """With Kafka's exactly-once: an effect in the transaction of the offset."""
        effects: list[dict[str, Any]] = []
        self._run(message, effects.append)
        return Message(outputs_of(self._job.name), json.dumps(_timed(effects[0])).encode(), id=message.id)

    def _run(self, message: Message, write: Callable[[dict[str, Any]], object]) -> str:
        known_as = str(message.id)
        self._begun[known_as] += 1
        _check_headers(message, self._journal, has_bytes=self._has_bytes)
        behaviour = _behaviour_in(message)
        place = str(message.position) if isinstance(message.position, Position) else ""
        fails = _fails(behaviour)
        _dawdle(behaviour, self._job.lease_s, slowly=is_slow(message.subject))
        if fails:
            self._journal.write(What.RAISED, id=known_as, position=place)
        if fails and not (self._store.is_transactional and behaviour is Behaviour.UNDONE):
            raise PoisonError("always") if behaviour is Behaviour.POISON else FlakyError("before the effect")
        around(write, "effect")(
            {
                "id": known_as,
                "position": place,
                "process": self._job.process,
                "attempt": self._begun[known_as],
                "fence": current_claim().fence,
            }
        )
        if fails:
            raise FlakyError("after the effect")
        return known_as


def _timed(effect: dict[str, Any]) -> dict[str, Any]:
    return effect | {"at": time.monotonic(), "wall": time.time()}


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
