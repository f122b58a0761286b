"""Contest: contenders in turn, round by round, on the same machine at the same time."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from idempotent import Message
from tests.bench.figures import Figure, What

Tick: TypeAlias = Callable[[], None]
Work: TypeAlias = Callable[[Sequence[Message], Tick], None]
"""Processes these messages, and says `tick()` after each call."""

SUBJECT: Final = "payments"
_WARM_S: Final = 0.05
_WARM_PARTS: Final = 3
_LARGEST: Final = 50_000
# One message at a time waits for the disk the most, and its ratios are demanded the closest: a round is the mean of
# several turns then, each with connections of its own.
_TURNS_OF_ONE: Final = 3


@dataclass(frozen=True, slots=True)
class Contender:
    """Who is measured.

    Attributes:
        where: the store.
        who: its name.
        open: what it needs around its work.
        batch: messages a call.
        threads: that call at the same time.
        whats: fresh messages, and duplicates where it knows them.
        after: gives up what it has after that, so that the next one begins anew.
    """

    where: str
    who: str
    open: Callable[[], AbstractContextManager[Work]]
    batch: int = 1
    threads: int = 1
    whats: tuple[What, ...] = (What.FRESH, What.DUPLICATES)
    after: Callable[[], object] = lambda: None

    @contextlib.contextmanager
    def opened(self) -> Iterator[Work]:
        """Opened, and all given up again."""
        with self.open() as work:
            yield work
        self.after()


def one_by_one(process: Callable[[Message], object]) -> Work:
    """Work by calls of one message."""

    def work(messages: Sequence[Message], tick: Tick) -> None:
        for message in messages:
            process(message)
            tick()

    return work


def in_batches(process: Callable[[Sequence[Message]], object], batch: int) -> Work:
    """Work by calls of `batch` messages."""

    def work(messages: Sequence[Message], tick: Tick) -> None:
        for start in range(0, len(messages), batch):
            process(messages[start : start + batch])
            tick()

    return work


@dataclass(slots=True)
class _Entry:
    contender: Contender
    count: int
    warm: int
    wall_us: dict[What, list[float]] = field(default_factory=dict)
    cpu_us: dict[What, list[float]] = field(default_factory=dict)
    calls_us: dict[What, list[float]] = field(default_factory=dict)

    @property
    def turns(self) -> int:
        """In each round."""
        return _TURNS_OF_ONE if self.contender.batch == 1 else 1

    def figures(self) -> Iterator[Figure]:
        for what, wall in self.wall_us.items():
            calls = sorted(self.calls_us[what])
            yield Figure(
                self.contender.where,
                self.contender.who,
                what,
                self.contender.batch,
                self.contender.threads,
                tuple(round(statistics.mean(turns), 3) for turns in _in_parts(wall, self.turns)),
                round(calls[len(calls) // 2], 1),
                round(calls[min(len(calls) * 99 // 100, len(calls) - 1)], 1),
                round(statistics.median(self.cpu_us[what]), 2),
            )


def contest(
    contenders: Sequence[Contender],
    *,
    rounds: int,
    seconds: float,
    on_step: Callable[[Contender], object] = lambda _: None,
) -> list[Figure]:
    """Let each contender do the same in each round, each time in another order.

    Each is opened anew in each round. Which processor serves a connection is luck that lasts as long as the connection:
    with one for all rounds a ratio of the same two contenders was found at 0.96 and at 1.27.

    Args:
        contenders: who; those whose ratio matters belong into one contest.
        rounds: how often.
        seconds: about how long one of them works in one round, fresh messages alone.
        on_step: called before each turn.
    """
    entries = []
    for contender in contenders:
        on_step(contender)
        with contender.opened() as work:
            message_s = _message_s(contender, work)
        count, warm = _count(contender, seconds / message_s), _count(contender, _WARM_S / message_s)
        entries.append(_Entry(contender, count, warm))
    for number in range(rounds):
        # Whoever follows a heavy writer finds the server still busy with what that one left: no one always follows it.
        turns = [entry for entry in entries for _ in range(entry.turns)]
        random.Random(number).shuffle(turns)
        for entry in turns:
            on_step(entry.contender)
            with entry.contender.opened() as work:
                _run(work, _messages("warm", entry.warm), entry.contender.threads)
                _turn(entry, work, number)
    return [figure for entry in entries for figure in entry.figures()]


def _in_parts(values: Sequence[float], size: int) -> Iterator[Sequence[float]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _count(contender: Contender, messages: float) -> int:
    """About so many messages, in whole calls of all its threads."""
    unit = contender.batch * contender.threads
    return max(int(min(messages, _LARGEST)) // unit, 1) * unit


def _message_s(contender: Contender, work: Work) -> float:
    """How long a message takes, at the best."""
    unit = contender.batch * contender.threads
    # By the quickest part: the first one connects, and any may meet a disk that is busy.
    count, part, least_s = unit, 0, math.inf
    while True:
        messages = _messages(f"warm-{part}", count)
        began = time.perf_counter()
        _run(work, messages, contender.threads)
        least_s = min(least_s, (time.perf_counter() - began) / count)
        part += 1
        if part >= _WARM_PARTS and (least_s * count >= _WARM_S or count >= _LARGEST):
            return least_s
        count *= 2


def _turn(entry: _Entry, work: Work, number: int) -> None:
    messages = _messages(f"round-{number}", entry.count)
    for what in entry.contender.whats:
        with _no_collector():
            cpu, began = time.process_time(), time.perf_counter()
            calls_us = _run(work, messages, entry.contender.threads)
            wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        entry.wall_us.setdefault(what, []).append(wall_s * 1e6 / len(messages))
        entry.cpu_us.setdefault(what, []).append(cpu_s * 1e6 / len(messages))
        entry.calls_us.setdefault(what, []).extend(calls_us)


def _run(work: Work, messages: Sequence[Message], threads: int) -> list[float]:
    """Microseconds of each call."""
    if threads == 1:
        return _timed(work, messages)
    calls_us: list[float] = []
    errors: list[BaseException] = []

    def part(number: int) -> None:
        share = len(messages) // threads
        try:
            calls_us.extend(_timed(work, messages[number * share : (number + 1) * share]))
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=part, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    return calls_us


def _timed(work: Work, messages: Sequence[Message]) -> list[float]:
    times = [time.perf_counter()]
    work(messages, lambda: times.append(time.perf_counter()))
    return [(after - before) * 1e6 for before, after in itertools.pairwise(times)]


def _messages(prefix: str, count: int) -> list[Message]:
    return [Message(SUBJECT, id=f"{prefix}-{number}") for number in range(count)]


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """A collection in the turn of one would be counted against it and not against the others."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
