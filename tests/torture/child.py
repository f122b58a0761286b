"""A consuming process: `python -m tests.torture.child`, with its job on the first line of standard input.

Each further line is a crash plan for this process, or null to cancel it. The end of standard input ends the process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.orm import registry as registry_of_rows

from examples.demo.stage.places import place_at
from idempotent.message import Message
from idempotent.policy import Backoff
from idempotent.registry import Registry
from idempotent.testing.crashpoints import AckPoints, CrashPlan, arm, crash_points
from idempotent.worker import Worker
from tests.torture.clocks import sleep_by_the_right_clock
from tests.torture.handling import FlakyError, HandlerRun, behaviour_in, check_headers, takes_s, timed
from tests.torture.journal import Journal, JournalObserver, What
from tests.torture.outbox import Sending, check_order_key
from tests.torture.settings import Job, Role
from tests.torture.stores import EffectStore, Outputs, effects_table, outputs_of, store_at
from tests.torture.traffic import (
    Behaviour,
    group_of,
    is_slow,
    known_as,
    sent_subject,
    subjects_of,
)

# Kills and failures alone never use up the attempts: only poison becomes a dead letter.
_ATTEMPTS: Final = 100_000
_BACKOFF: Final = Backoff(initial_s=0.1, maximum_s=1.0)
_GC_EVERY_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.2
_STARVED_S: Final = 0.8


def main() -> None:
    """Read the job, and do it."""
    job = Job(**json.loads(sys.stdin.readline()))
    if job.shift_s:
        sleep_by_the_right_clock()
    logging.basicConfig(format=f"%(asctime)s {job.process} %(levelname)s %(message)s", level="WARNING")
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
    place = place_at(job.broker_url, job.name, job.batch_size)
    if job.role == Role.RELAYS:
        Sending(job, journal, place).relay_until_stopped()
        return
    sending = Sending(job, journal, place) if job.role == Role.SENDS else None
    checker = crash_points(store.checker(is_async=job.is_async))
    handlers = _Handlers(job, journal, store, sending, has_bytes=place.has_bytes)
    for subject in subjects_of(job.name) if job.role != Role.RECEIVES else [sent_subject(job.name)]:
        registry.consumer(
            subject,
            group=group_of(subject),
            checker=checker,
            retry_for=(FlakyError, SQLAlchemyError),
            max_attempts=_ATTEMPTS,
            backoff=_BACKOFF,
            store_result=job.results,
        )(handlers.chosen)
    Worker(
        registry,
        place.adapter(),
        job.concurrency,
        job.batch_size,
        gc_interval_s=_GC_EVERY_S,
        services=[] if sending is None else [sending.relay()],
    ).run()
    registry.close()


class _Handlers:
    """The handlers of one process; they differ in where their effects go, and in whether they are `async def`."""

    def __init__(
        self, job: Job, journal: Journal, store: EffectStore, sending: Sending | None, *, has_bytes: bool
    ) -> None:
        self._job = job
        self._journal = journal
        self._store = store
        self._sending = sending
        self._has_bytes = has_bytes
        self._begun: Counter[str] = Counter()
        self._table = effects_table(job.name)
        base = registry_of_rows().generate_base()
        self._row: Callable[..., object] = type("Row", (base,), {"__table__": self._table})

    @property
    def chosen(self) -> Callable[..., Any]:
        """The handler for this store."""
        if isinstance(self._store, Outputs):
            return self._in_topic_async if self._job.is_async else self._in_topic
        if self._store.is_transactional:
            return self._in_database_async if self._job.is_async else self._in_database
        return self._in_journal_async if self._job.is_async else self._in_journal

    def _in_journal(self, message: Message) -> str:
        """With a leased checker: an effect outside of its store."""
        run = self._begin(message)
        time.sleep(run.takes_s)
        with run.effect() as effect:
            self._journal.write(What.EFFECT, **effect)
        return run.end()

    async def _in_journal_async(self, message: Message) -> str:
        run = self._begin(message)
        await asyncio.sleep(run.takes_s)
        with run.effect() as effect:
            self._journal.write(What.EFFECT, **effect)
        return run.end()

    def _in_database(self, message: Message, session: Session) -> str:
        """With a transactional checker: an effect in the transaction of the key."""
        run = self._begin(message)
        if run.behaviour is Behaviour.FORGETFUL:
            session.expunge_all()
        time.sleep(run.takes_s)
        with run.effect() as effect:
            if run.behaviour is Behaviour.UNSENT:
                session.add(self._row(**timed(effect)))
            else:
                session.execute(insert(self._table), timed(effect))
            if self._sending is not None:
                self._sending.send(session, message)
        return run.end()

    async def _in_database_async(self, message: Message, session: AsyncSession) -> str:
        run = self._begin(message)
        if run.behaviour is Behaviour.FORGETFUL:
            session.expunge_all()
        await asyncio.sleep(run.takes_s)
        with run.effect() as effect:
            if run.behaviour is Behaviour.UNSENT:
                session.add(self._row(**timed(effect)))
            else:
                await session.execute(insert(self._table), timed(effect))
            if self._sending is not None:
                await self._sending.send_async(session, message)
        return run.end()

    def _in_topic(self, message: Message) -> Message:
        """With Kafka's exactly-once: an effect in the transaction of the offset."""
        run = self._begin(message)
        time.sleep(run.takes_s)
        return self._sent(run)

    async def _in_topic_async(self, message: Message) -> Message:
        run = self._begin(message)
        await asyncio.sleep(run.takes_s)
        return self._sent(run)

    def _sent(self, run: HandlerRun) -> Message:
        with run.effect() as effect:
            body = json.dumps(timed(effect)).encode()
        return Message(outputs_of(self._job.name), body, id=run.end())

    def _begin(self, message: Message) -> HandlerRun:
        self._begun[known_as(message)] += 1
        check_headers(message, self._journal, has_bytes=self._has_bytes)
        if self._job.role == Role.RECEIVES:
            check_order_key(message, self._journal)
        behaviour = behaviour_in(message)
        takes = takes_s(behaviour, self._job.lease_s, slowly=is_slow(message.subject))
        undone = self._store.is_transactional and behaviour is Behaviour.UNDONE
        return HandlerRun(
            self._journal, self._job.process, message, self._begun[known_as(message)], takes, undone=undone
        )


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


if __name__ == "__main__":
    main()
