"""A consumer process to be killed: it handles the messages of a Job once.

Where it dies is said by IDEMPOTENT_CRASH_AT. What it settles comes out as JSON lines; whatever it had not settled
is to be delivered again by the test.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from sqlalchemy.orm import Session

from idempotent import Message, Registry, Result
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.consumer import Consumer
from idempotent.observe import Event, counters
from idempotent.policy import Backoff
from idempotent.testing.crashpoints import around, crash_points
from tests.support.awaited import Awaited, as_async
from tests.support.stores import Store

SUBJECT = "orders"


@dataclass(frozen=True)
class Job:
    """What to consume, and how."""

    kind: str
    url: str
    table: str
    ledger: str
    ids: tuple[str, ...] = ("1",)
    transactional: bool = False
    lease_s: float = 1.0
    lock_timeout_s: float = 5.0
    policy: str = "retry"
    max_attempts: int = 5
    max_deaths: int = 5
    together: bool = False
    fails: bool = False
    redelivered: bool = False
    is_async: bool = False
    at_once: bool = False

    def with_(self, **changes: Any) -> Job:
        return replace(self, **changes)

    def checker(self, store: Store, engine: Any = None) -> AbstractIdempotentChecker:
        if self.transactional:
            engine = engine or (store.async_engine() if self.is_async else None)
            return store.transactional(engine, lock_timeout_s=self.lock_timeout_s)
        return store.leased(lease_s=self.lease_s)

    def consumer(
        self,
        store: Store,
        checker: AbstractIdempotentChecker | None = None,
        during: Callable[[], object] = lambda: None,
    ) -> Consumer:
        """The consumer of this job; `during` runs in its handler, after the effect."""

        def handle(message: Message) -> None:
            write(self.ledger, str(message.id))
            self._end(during)

        def handle_in_session(message: Message, session: Session) -> None:
            session.execute(store.effects.insert().values(id=message.id))
            self._end(during)

        def happened(key: Any) -> bool:
            write(f"{self.ledger}.asked", key.text)
            return effects(self.ledger)[key.text.rpartition(":")[2]] > 0

        options = (
            {}
            if self.transactional
            else {"on_expired_lease": happened if self.policy == "ask" else self.policy}
        )
        register = Registry().consumer(
            SUBJECT,
            checker=checker or self.checker(store),
            max_attempts=self.max_attempts,
            max_deaths=self.max_deaths,
            backoff=Backoff(0),
            **options,
        )
        handler = around(handle_in_session if self.transactional else handle, "effect")
        if self.is_async:
            return cast("Consumer", Awaited(register(as_async(handler))))
        return register(handler)

    def _end(self, during: Callable[[], object]) -> None:
        during()
        if self.fails:
            raise ValueError("as the job says")


def write(path: str, line: str) -> None:
    """An effect that no transaction undoes and no crash forgets."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{line}\n".encode())
    os.fsync(file)
    os.close(file)


def effects(ledger: str) -> Counter[str]:
    """How often each effect happened."""
    path = Path(ledger)
    return Counter(path.read_text().splitlines() if path.exists() else ())


def settle(message: Message, result: Result) -> None:
    line = {"id": message.id, "outcome": result.outcome.value, "error": str(result.error or "")}
    os.write(1, f"{json.dumps(line)}\n".encode())


def work(job: Job) -> None:
    store = Store(job.kind, job.url, job.table)
    with store.opened:
        checker = job.checker(store)
        consumer = job.consumer(
            store, meeting(checker, len(job.ids)) if job.at_once else crash_points(checker)
        )
        messages = [Message(SUBJECT, id=i, redelivered=job.redelivered) for i in job.ids]
        ack = around(settle, "ack")
        if job.together:
            for message, result in zip(messages, consumer.process_many(messages), strict=True):
                ack(message, result)
        elif job.at_once:
            process_at_once(consumer, messages, ack)
        else:
            for message in messages:
                ack(message, consumer.process(message))
        counts = {what.value: n for (_, what), n in counters.snapshot().items() if isinstance(what, Event)}
        os.write(1, f"{json.dumps({'counters': counts})}\n".encode())


def meeting(checker: AbstractIdempotentChecker, calls: int) -> AbstractIdempotentChecker:
    """Only statements for several keys pass crash points. One for a single key waits until all calls have arrived."""
    hooks = checker.protocol.hooks
    crash_points(checker)
    combiner, points = checker.combiner, cast("Any", checker.protocol.hooks)
    assert combiner is not None

    def after_all(hook: Callable[..., Any]) -> Callable[..., Any]:
        inside: list[int] = []

        def held(*arguments: Any) -> Any:
            inside.append(1)
            until = time.monotonic() + 60
            while len(inside) + combiner.waiting < calls:
                assert time.monotonic() < until, "the calls do not meet"
                time.sleep(0.002)
            return hook(*arguments)

        return held

    points._claim, points._complete = after_all(hooks._claim), after_all(hooks._complete)
    return checker


def process_at_once(
    consumer: Consumer, messages: Sequence[Message], ack: Callable[[Message, Result], None]
) -> None:
    """Each in a thread, or a task, of its own."""
    if isinstance(consumer, Awaited):
        inner = consumer.consumer

        async def process(message: Message) -> None:
            ack(message, await inner.process(message))

        async def all_of_them() -> None:
            await asyncio.gather(*map(process, messages))

        asyncio.run(all_of_them())
        return
    threads = [
        threading.Thread(target=lambda each: ack(each, consumer.process(each)), args=(message,))
        for message in messages
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def die_in_handler(kind: str, url: str, table: str, mode: str) -> None:
    """End without a word, as a killed process does, after the claim and before any effect."""
    store = Store(kind, url, table)
    checker = store.leased() if mode == "leased" else store.transactional()
    handle = Registry().consumer(SUBJECT, checker=checker, group=mode)(lambda _: os._exit(9))
    handle.process(Message(SUBJECT, id="1"))
