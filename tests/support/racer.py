"""One of several workers that race on the same keys: a thread, a process of its own, or one with many tasks."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from idempotent import AsyncConsumer, Message, Outcome, Registry
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.consumer import Consumer
from tests.support.stores import Store

DEADLINE_S = 150.0
GROUP = 50
SETTLED = (Outcome.PROCESSED, Outcome.DUPLICATE)
AGAIN = (Outcome.IN_PROGRESS, Outcome.UNAVAILABLE)


@dataclass(frozen=True)
class Race:
    """What one worker does.

    Attributes:
        kind: of the store.
        url: of the store.
        table: or prefix, of this test alone.
        mode: leased, transactional or savepoints.
        ledger: file to which a leased handler appends; transactional ones write into the effects table.
        keys: how many.
        order: forward, reverse, or shuffled by the seed.
        seed: of this worker's choices.
        mixed: also process some messages by themselves.
    """

    kind: str
    url: str
    table: str
    mode: str
    ledger: str
    keys: int
    order: str
    seed: int
    mixed: bool

    def names(self) -> list[str]:
        names = [f"m-{number}" for number in range(self.keys)]
        if self.order == "reverse":
            names.reverse()
        elif self.order == "shuffled":
            random.Random(self.seed).shuffle(names)
        return names

    def checker(self, store: Store) -> AbstractIdempotentChecker:
        if self.mode == "leased":
            return store.leased()
        # SQLite's one writer is waited for by the driver.
        engine = store.engine(connect_args={"timeout": 20}) if self.kind == "sqlite" else store.engine()
        return store.transactional(engine, savepoints=self.mode == "savepoints", lock_timeout_s=1)


def consumer_of(race: Race, store: Store, checker: AbstractIdempotentChecker) -> Consumer:
    """Books each effect where no two workers can get in each other's way."""
    make = Registry().consumer("races", checker=checker, max_attempts=1)
    if race.mode == "leased":
        ledger = os.open(race.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

        def handle(message):
            os.write(ledger, f"{message.id}\n".encode())
            # On a busy machine one would be through with all keys before the others have their turn.
            time.sleep(0.0001)
    else:
        effects = store.effects

        def handle(message, session: Session):
            session.execute(effects.insert().values(id=message.id))

    return make(handle)


def run(race: Race, consumer: Consumer) -> Counter[str]:
    """Deliver until every message is settled. Returns how often each outcome was met."""
    chance = random.Random(race.seed)
    met: Counter[str] = Counter()
    pending = race.names()
    deadline = time.monotonic() + DEADLINE_S
    while pending:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(pending)} messages are not settled: {pending[:5]}; {dict(met)}")
        left: list[str] = []
        start = 0
        while start < len(pending):
            size = 1 if race.mixed and chance.random() < 0.1 else GROUP
            names = pending[start : start + size]
            start += size
            group = [Message("races", id=name) for name in names]
            results = [consumer.process(group[0])] if size == 1 else consumer.process_many(group)
            for name, result in zip(names, results, strict=True):
                met[result.outcome.value] += 1
                if result.outcome in AGAIN:
                    left.append(name)
                elif result.outcome not in SETTLED:
                    raise AssertionError(f"{name}: {result}") from result.error
                if result.outcome is Outcome.UNAVAILABLE:
                    met[f"unavailable: {type(result.error).__name__}: {str(result.error)[:200]}"] += 1
        pending = left
        if left:
            time.sleep(chance.uniform(0.0, 0.02))
    return met


def race_in_process(race: Race, together: Barrier) -> None:
    """Start when all are ready; print how often each outcome was met."""
    store = Store(race.kind, race.url, race.table)
    with store.opened:
        consumer = consumer_of(race, store, race.checker(store))
        if race.kind not in ("memory", "redis"):
            with store.engine().connect() as connection:
                connection.execute(sa.select(1))
        together.wait(DEADLINE_S)
        os.write(1, json.dumps(run(race, consumer)).encode())


def race_in_tasks(race: Race, tasks: int, lease_s: float, together: Barrier) -> None:
    """As `race_in_process`, with so many tasks. A leased effect is noted with the process's number."""
    store = Store(race.kind, race.url, race.table)
    with store.opened:
        leased = race.mode == "leased"
        checker = store.leased(lease_s=lease_s) if leased else store.transactional(store.async_engine())
        consumer = async_consumer_of(race, store, checker)
        together.wait(DEADLINE_S)
        met = asyncio.run(asyncio.wait_for(run_tasks(race, consumer, tasks), DEADLINE_S))
        os.write(1, json.dumps(met).encode())


def async_consumer_of(race: Race, store: Store, checker: AbstractIdempotentChecker) -> AsyncConsumer:
    make = Registry().consumer("races", checker=checker, max_attempts=3)
    if race.mode == "leased":
        ledger = os.open(race.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

        async def handle(message: Message) -> None:
            os.write(ledger, f"{message.id} {os.getpid()}\n".encode())
            await asyncio.sleep(random.uniform(0, 0.02))

        return make(handle)

    effects = store.effects

    async def book(message: Message, session: AsyncSession) -> None:
        await session.execute(effects.insert().values(id=message.id))
        await asyncio.sleep(random.uniform(0, 0.02))

    return make(book)


async def run_tasks(race: Race, consumer: AsyncConsumer, tasks: int) -> Counter[str]:
    """Deliver until every message is settled. Returns how often each final outcome was met."""
    met: Counter[str] = Counter()
    left = iter(race.names())

    async def work() -> None:
        for name in left:
            result = await consumer.process(Message("races", id=name))
            while result.outcome in AGAIN:
                await asyncio.sleep(min(result.retry_after_s or 0.0, 0.05))
                result = await consumer.process(Message("races", id=name))
            assert result.outcome in SETTLED, f"{name}: {result}"
            met[result.outcome.value] += 1

    await asyncio.gather(*(work() for _ in range(tasks)))
    return met
