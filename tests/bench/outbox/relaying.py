"""A relay with many messages to publish, and one that waits for each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message
from idempotent.adapters import adapter_from_url
from idempotent.adapters.base import Adapter
from idempotent.outbox import Outbox, Relay
from idempotent.outbox.entries import BUCKETS
from idempotent.testing.only_publishing import OnlyPublishing
from tests.bench.brokers.places import BODY, Place
from tests.bench.checkers import engine_at
from tests.bench.figures import Figure, What
from tests.bench.outbox.names import BATCH, idle_relay_to, relay_to, with_outbox

_PATIENCE_S: Final = 120.0
_CUSTOMERS: Final = 1_000
_WARM: Final = 2_000
_IDLE_S: Final = 0.02
_LOOK_S: Final = 0.005

OnStep = Callable[[str], object]


class Watched(OnlyPublishing):
    """Publishes through another adapter, and counts what that one has confirmed."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__(adapter)
        self._changed = threading.Condition()
        self._confirmed = 0

    def publish_many(self, messages: Sequence[Message]) -> None:
        super().publish_many(messages)
        with self._changed:
            self._confirmed += len(messages)
            self._changed.notify_all()

    def wait(self, confirmed: int) -> None:
        """Wait for the confirm of so many messages."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._confirmed >= confirmed, _PATIENCE_S):
                raise TimeoutError(f"{self._confirmed} of {confirmed} messages were published")


@dataclass(slots=True)
class _Running:
    """A relay in this process, which has published some messages already."""

    engine: sa.Engine
    outbox: Outbox
    publisher: Watched
    subject: str
    sent: int = 0

    def commit(self, count: int) -> float:
        """Send in one transaction. Returns when it began to commit."""
        with Session(self.engine) as session:
            for number in range(count):
                self.outbox.send(session, Message(self.subject, BODY), order_key=f"c-{number % _CUSTOMERS}")
            self.outbox.flush(session)
            began = time.perf_counter()
            session.commit()
        self.sent += count
        return began

    def wait_until_empty(self) -> None:
        """Wait until all messages are published, and deleted."""
        self.publisher.wait(self.sent)
        while self.outbox.store.read(dict.fromkeys(range(BUCKETS), 1)):
            time.sleep(_LOOK_S)


def relayed(
    where: str, url: str, broker: str, place: Place, rounds: int, on_step: OnStep
) -> Iterator[Figure]:
    """Rounds of a relay that publishes `place.count` messages."""
    subject = place.fill(lambda _: None)  # it warms the broker as well
    wall_us, cpu_us = [], []
    for _ in range(rounds):
        on_step(f"{where}: {relay_to(broker)}, {place.count:,} messages")
        with _running(url, place, subject) as running:
            began, cpu = running.commit(place.count), time.process_time()
            running.wait_until_empty()
            wall_us.append((time.perf_counter() - began) * 1e6 / place.count)
            cpu_us.append((time.process_time() - cpu) * 1e6 / place.count)
    yield Figure(
        with_outbox(where),
        relay_to(broker),
        What.FRESH,
        BATCH,
        1,
        tuple(round(us, 3) for us in wall_us),
        0.0,
        0.0,
        round(sorted(cpu_us)[len(cpu_us) // 2], 2),
    )


def idle(where: str, url: str, broker: str, place: Place, messages: int, on_step: OnStep) -> Iterator[Figure]:
    """One message at a time, each when the relay has nothing to do."""
    on_step(f"{where}: {idle_relay_to(broker)}")
    calls_us = []
    with _running(url, place, place.fill(lambda _: None)) as running:
        for _ in range(messages):
            time.sleep(_IDLE_S)
            running.commit(1)
            committed = time.perf_counter()
            running.publisher.wait(running.sent)
            calls_us.append((time.perf_counter() - committed) * 1e6)
    calls_us.sort()
    median = round(calls_us[len(calls_us) // 2], 1)
    yield Figure(
        with_outbox(where),
        idle_relay_to(broker),
        What.FRESH,
        1,
        1,
        (median,),
        median,
        round(calls_us[len(calls_us) * 99 // 100], 1),
        0.0,
    )


@contextmanager
def _running(url: str, place: Place, subject: str) -> Iterator[_Running]:
    engine = engine_at(url)
    outbox, publisher = Outbox(engine), Watched(adapter_from_url(place.url))
    running = _Running(engine, outbox, publisher, subject)
    try:
        with Relay(outbox, publisher, batch_size=BATCH):
            running.commit(_WARM)
            running.wait_until_empty()
            yield running
    finally:
        outbox.close()
        engine.dispose()
