"""Crowd: callers that process messages at the same time, and what their calls take."""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeAlias

from idempotent import Message
from tests.bench.contest import SUBJECT
from tests.bench.figures import Figure, What

Call: TypeAlias = Callable[[Message], Awaitable[object]]
Opened: TypeAlias = AsyncIterator[Call]
_WARM: Final = 0.1
# A caller that is alone waits for the disk the most, and its ratios have the closest targets.
_TURNS_ALONE: Final = 3


@dataclass(frozen=True, slots=True)
class Turn:
    """What a crowd did in one round.

    Attributes:
        wall_us: microseconds a message.
        cpu_us: processor time of this process a message, in microseconds.
        calls_us: microseconds of each call; empty where they cannot be seen.
    """

    wall_us: float
    cpu_us: float
    calls_us: Sequence[float]


@dataclass(frozen=True, slots=True)
class Crowd:
    """Callers that work at the same time.

    Attributes:
        where: the store or broker.
        who: what they call.
        size: how many they are.
        turn: processes so many messages that it has not seen.
        messages: of one turn.
        after: closes the connections of a turn, so that the next turn opens its own.
    """

    where: str
    who: str
    size: int
    turn: Callable[[int], Turn]
    messages: int
    after: Callable[[], object] = lambda: None

    @property
    def turns(self) -> int:
        """In each round."""
        return _TURNS_ALONE if self.size == 1 else 1


def rounds_of(crowds: Sequence[Crowd], rounds: int, on_step: Callable[[str], object]) -> Iterator[Figure]:
    """Each crowd in each round, each time in another order."""
    turns: dict[Crowd, list[list[Turn]]] = {crowd: [] for crowd in crowds}
    for number in range(rounds):
        order = [crowd for crowd in crowds for _ in range(crowd.turns)]
        random.Random(number).shuffle(order)
        for some in turns.values():
            some.append([])
        for crowd in order:
            on_step(f"{crowd.where}: {crowd.who}, {crowd.size} at once")
            turns[crowd][-1].append(crowd.turn(crowd.messages))
            crowd.after()
    for crowd, of_rounds in turns.items():
        every = list(chain.from_iterable(of_rounds))
        calls = sorted(us for turn in every for us in turn.calls_us) or [0.0]
        yield Figure(
            crowd.where,
            crowd.who,
            What.FRESH,
            1,
            crowd.size,
            tuple(round(statistics.mean(turn.wall_us for turn in some), 3) for some in of_rounds),
            round(calls[len(calls) // 2], 1),
            round(calls[len(calls) * 99 // 100], 1),
            round(statistics.median(turn.cpu_us for turn in every), 2),
        )


def by_tasks(opened: Callable[[], AbstractAsyncContextManager[Call]], size: int) -> Callable[[int], Turn]:
    """Turns of so many tasks that call what is opened for the round."""

    async def turn(count: int) -> Turn:
        async with opened() as call:
            await _calls(call, _messages("warm", int(count * _WARM)), size)
            with _measured(count) as measured:
                measured.calls_us = await _calls(call, _messages("fresh", count), size)
        return measured.turn

    return lambda count: asyncio.run(turn(count))


def by_thread(process: Callable[[Message], object]) -> Callable[[int], Turn]:
    """Turns of one thread."""

    def turn(count: int) -> Turn:
        for message in _messages("warm", int(count * _WARM)):
            process(message)
        calls_us = []
        with _measured(count) as measured:
            for message in _messages("fresh", count):
                began = time.perf_counter()
                process(message)
                calls_us.append((time.perf_counter() - began) * 1e6)
            measured.calls_us = calls_us
        return measured.turn

    return turn


async def _calls(call: Call, messages: Sequence[Message], size: int) -> list[float]:
    left = iter(messages)
    calls_us: list[float] = []

    async def caller() -> None:
        for message in left:
            began = time.perf_counter()
            await call(message)
            calls_us.append((time.perf_counter() - began) * 1e6)

    await asyncio.gather(*(caller() for _ in range(size)))
    return calls_us


def _messages(prefix: str, count: int) -> list[Message]:
    return [Message(SUBJECT, id=f"{prefix}-{number}") for number in range(count)]


@dataclass(slots=True)
class _Measured:
    """A turn while it is measured."""

    count: int
    wall_s: float = 0.0
    cpu_s: float = 0.0
    calls_us: Sequence[float] = field(default_factory=tuple)

    @property
    def turn(self) -> Turn:
        return Turn(self.wall_s * 1e6 / self.count, self.cpu_s * 1e6 / self.count, self.calls_us)


@contextmanager
def _measured(count: int) -> Iterator[_Measured]:
    measured = _Measured(count)
    gc.collect()
    gc.disable()
    cpu, began = time.process_time(), time.perf_counter()
    try:
        yield measured
    finally:
        measured.wall_s, measured.cpu_s = time.perf_counter() - began, time.process_time() - cpu
        gc.enable()
