"""Workers: many threads over memory, and many tasks over a broker."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final

from idempotent import Message, Registry, Worker
from idempotent.adapters.base import Adapter
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.checkers.base import AbstractIdempotentChecker
from tests.bench.brokers import BARE as CLIENT
from tests.bench.brokers.course import Course
from tests.bench.brokers.places import Place
from tests.bench.brokers.through import watched
from tests.bench.contest import SUBJECT
from tests.bench.crowd.calls import Crowd, Turn
from tests.bench.crowd.names import APART, ASLEEP, THREADS, WORKER, with_callers

_SLEEP_S: Final = 0.01


def over_memory(where: str, who: str, checker: Callable[..., AbstractIdempotentChecker]) -> list[Crowd]:
    """The threads of a Worker, with and without natural batching."""
    apart = partial(checker, combine=False)
    return [
        Crowd(where, f"{WORKER}, {who}", THREADS, partial(_threads, checker), 10_000),
        Crowd(where, f"{WORKER}, {who}, {APART}", THREADS, partial(_threads, apart), 3_000),
    ]


def over(broker: str, place: Place) -> list[Crowd]:
    """The tasks of a Worker, whose handlers sleep; and the bare client, which only acknowledges."""
    where = with_callers(broker)
    return [
        Crowd(where, WORKER, ASLEEP, partial(_asleep, place), place.count),
        Crowd(
            where, CLIENT, ASLEEP, lambda _: _turn(place.bare(place.fill(_ignore)), place.count), place.count
        ),
    ]


def _threads(checker: Callable[[], AbstractIdempotentChecker], count: int) -> Turn:
    made, registry, broker = checker(), Registry(), MemoryBroker()
    registry.consumer(SUBJECT, checker=made, group=secrets.token_hex(4))(lambda _: None)
    for number in range(count):
        broker.publish(Message(SUBJECT, id=str(number)))
    try:
        return _Work(registry, MemoryAdapter(broker, until_empty=True), THREADS).turn(count)
    finally:
        made.close()


def _asleep(place: Place, count: int) -> Turn:
    registry, left = Registry(), iter(range(count - 1))

    @registry.consumer(place.fill(_ignore), checker=MemoryChecker(), group=place.group)
    async def handle(_: Message) -> None:
        await asyncio.sleep(_SLEEP_S)
        if next(left, None) is None:
            work.worker.stop()

    work = _Work(registry, place.adapter_for_tasks(), ASLEEP)
    return work.turn(count)


class _Work:
    """A Worker, and what it takes from the first delivery to the last settlement."""

    def __init__(self, registry: Registry, adapter: Adapter, concurrency: int) -> None:
        self._course = Course()
        self.worker = Worker(
            registry, watched(adapter, self._course), concurrency=concurrency, gc_interval_s=None
        )

    def turn(self, count: int) -> Turn:
        summary = self.worker.run()
        if summary.settled < count:
            raise RuntimeError(f"settled {summary.settled} of {count}: {summary}")
        return _turn(self._course, count)


def _turn(course: Course, count: int) -> Turn:
    return Turn(course.wall_s * 1e6 / count, course.cpu_s * 1e6 / count, ())


def _ignore(_: int) -> None:
    """Nothing is said about how many messages are published."""
