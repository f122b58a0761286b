"""What the crash tests do with their children, and what they look at afterwards."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil

from idempotent import Message, Outcome, Result
from idempotent.admin import KeyFilter, KeyRecord
from idempotent.consumer import Consumer
from idempotent.testing.crashpoints import CRASH_VARIABLE
from tests.guarantees.crash.child import SUBJECT, Job, effects, work
from tests.support.forked import Forked
from tests.support.stores import Store

T = TypeVar("T")
DEADLINE_S = 120.0


def until(look: Callable[[], T | None], what: str) -> T:
    """Poll: the machine may be slow."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        answer = look()
        if answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"not within {DEADLINE_S:g} s: {what}")


@dataclass
class Child:
    """A running child."""

    process: Forked

    def wait(self) -> list[dict[str, Any]]:
        """What it settled until it ended by itself."""
        assert self.process.wait(DEADLINE_S) == 0, self.process.err
        return _lines(self.process.out)

    def wait_until_killed(self, point: str) -> list[dict[str, Any]]:
        """What it settled until it was killed where it should be."""
        assert self.process.wait(DEADLINE_S) == -signal.SIGKILL, self.process.err
        assert f"kill at {point}" in self.process.err
        return _lines(self.process.out)

    def wait_until_paused(self) -> None:
        process = psutil.Process(self.process.pid)
        until(lambda: process.status() == psutil.STATUS_STOPPED or self.process.poll() is not None, "paused")
        assert self.process.poll() is None, self.process.err

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.process.close()


def _lines(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


@dataclass
class Scene:
    """One store, its children, and this process as the one that gets the redeliveries."""

    store: Store
    job: Job
    children: list[Child] = field(default_factory=list)

    def start(self, at: str = "", **changes: Any) -> Child:
        folder = Path(self.job.ledger).parent
        child = Child(Forked(work, self.job.with_(**changes), folder=folder, environ={CRASH_VARIABLE: at}))
        self.children.append(child)
        return child

    def die(self, at: str, **changes: Any) -> list[dict[str, Any]]:
        """Let a child consume the job and die at this point; what it settled before."""
        return self.start(at, **changes).wait_until_killed(at.partition(":")[0])

    def consumer(
        self, *, store: Store | None = None, during: Callable[[], object] = lambda: None, **changes: Any
    ) -> Consumer:
        return self.job.with_(**changes).consumer(store or self.store, during=during)

    def through(self, port: int) -> Store:
        """The same store behind a proxy."""
        return replace(self.store, url=behind(self.store, port))

    def effects(self) -> dict[str, int]:
        return self.store.booked() if self.job.transactional else dict(effects(self.job.ledger))

    def asked(self) -> int:
        return effects(f"{self.job.ledger}.asked").total()

    def keys(self) -> dict[str, KeyRecord]:
        admin: Any = self.job.checker(self.store)
        return {record.text.rpartition(":")[2]: record for record in admin.admin().list(KeyFilter())}

    def key(self, id: str = "1") -> KeyRecord:
        """The stored key as it is, without the clock that was read with it."""
        return replace(self.keys()[id], now_us=0)

    def close(self) -> None:
        for child in self.children:
            child.close()


def behind(store: Store, port: int) -> str:
    import sqlalchemy as sa

    url = sa.make_url(store.url).set(host="127.0.0.1", port=port)
    if store.kind == "postgres":
        url = url.update_query_dict({"sslmode": "disable"})  # the proxy reads what goes by
    return url.render_as_string(hide_password=False)


def deliver(consumer: Consumer, id: str = "1") -> Result:
    return consumer.process(Message(SUBJECT, id=id))


def deliver_until_settled(consumer: Consumer, id: str = "1") -> Result:
    """Deliver again while somebody else, alive or dead, still has the key."""

    def settled() -> Result | None:
        result = deliver(consumer, id)
        return None if result.outcome in (Outcome.IN_PROGRESS, Outcome.UNAVAILABLE) else result

    return until(settled, f"a final outcome of {id}")
