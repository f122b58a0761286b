"""Relays with many messages to publish, and with one at a time."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
from tests.bench.outbox.names import BATCH, RELAY, idle_relay_to, relay_to, with_outbox

PATIENCE_S: Final = 120.0
_CUSTOMERS: Final = 1_000
WARM: Final = 2_000
IDLE_S: Final = 0.02
LOOK_S: Final = 0.005

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
            if not self._changed.wait_for(lambda: self._confirmed >= confirmed, PATIENCE_S):
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
            time.sleep(LOOK_S)


@dataclass(frozen=True, slots=True)
class RelayContender:
    """Who relays from a database to a broker.

    Attributes:
        who: its name.
        publish: many messages, into a subject. Returns wall-clock and processor seconds.
        publish_one_by_one: so many messages, into a subject, each when it has nothing else to do. Returns the seconds
            from each commit to the confirm.
    """

    who: str
    publish: Callable[[str, int], tuple[float, float]]
    publish_one_by_one: Callable[[str, int], list[float]]


def ours(url: str, place: Place) -> RelayContender:
    """Our relay, from the database with this URL."""
    return RelayContender(RELAY, partial(_publish, url, place), partial(_publish_one_by_one, url, place))


def relayed(
    where: str, broker: str, place: Place, contenders: Sequence[RelayContender], rounds: int, on_step: OnStep
) -> Iterator[Figure]:
    """Rounds in which each publishes `place.count` messages, each time in another order."""
    subjects = {one.who: place.fill(lambda _: None) for one in contenders}  # it warms the broker as well
    wall_us: dict[str, list[float]] = {one.who: [] for one in contenders}
    cpu_us: dict[str, list[float]] = {one.who: [] for one in contenders}
    for number in range(rounds):
        for one in random.Random(number).sample(contenders, len(contenders)):
            on_step(f"{where}: {relay_to(broker, one.who)}, {place.count:,} messages")
            wall_s, cpu_s = one.publish(subjects[one.who], place.count)
            wall_us[one.who].append(round(wall_s * 1e6 / place.count, 3))
            cpu_us[one.who].append(cpu_s * 1e6 / place.count)
    for who, each in wall_us.items():
        cpu = round(statistics.median(cpu_us[who]), 2)
        yield Figure(
            with_outbox(where), relay_to(broker, who), What.FRESH, BATCH, 1, tuple(each), 0.0, 0.0, cpu
        )


def idle(
    where: str,
    broker: str,
    place: Place,
    contenders: Sequence[RelayContender],
    messages: int,
    on_step: OnStep,
) -> Iterator[Figure]:
    """One message at a time, each when the relay has nothing to do."""
    for one in contenders:
        who = idle_relay_to(broker, one.who)
        on_step(f"{where}: {who}")
        calls = sorted(one.publish_one_by_one(place.fill(lambda _: None), messages))
        median, slow = (round(calls[messages * percent // 100] * 1e6, 1) for percent in (50, 99))
        yield Figure(with_outbox(where), who, What.FRESH, 1, 1, (median,), median, slow, 0.0)


def _publish(url: str, place: Place, subject: str, count: int) -> tuple[float, float]:
    with _running(url, place, subject) as running:
        began, cpu = running.commit(count), time.process_time()
        running.wait_until_empty()
        return time.perf_counter() - began, time.process_time() - cpu


def _publish_one_by_one(url: str, place: Place, subject: str, messages: int) -> list[float]:
    calls = []
    with _running(url, place, subject) as running:
        for _ in range(messages):
            time.sleep(IDLE_S)
            running.commit(1)
            committed = time.perf_counter()
            running.publisher.wait(running.sent)
            calls.append(time.perf_counter() - committed)
    return calls


@contextmanager
def _running(url: str, place: Place, subject: str) -> Iterator[_Running]:
    engine = engine_at(url)
    outbox, publisher = Outbox(engine), Watched(adapter_from_url(place.url))
    running = _Running(engine, outbox, publisher, subject)
    try:
        with Relay(outbox, publisher, batch_size=BATCH):
            running.commit(WARM)
            running.wait_until_empty()
            yield running
    finally:
        outbox.close()
        engine.dispose()
