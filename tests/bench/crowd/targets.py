"""The targets of async handlers and of natural batching."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Final

from tests.bench.brokers import BARE as CLIENT
from tests.bench.crowd.names import (
    APART,
    ASLEEP,
    BARE,
    BY_HAND,
    HOP,
    SYNC,
    TASKS,
    THREADS,
    WORKER,
    with_callers,
)
from tests.bench.figures import Figure, Figures, faster, slower
from tests.bench.goals import Goal, Target
from tests.bench.peers import IDEMKIT

_LEASED: Final = {"Redis": "RedisChecker", "MariaDB": "SqlChecker", "PostgreSQL": "SqlChecker"}
_SQL: Final = ("MariaDB", "PostgreSQL")
_TIMES_IN_A_WORKER: Final = {"Redis": 2.5, "MariaDB": 6, "PostgreSQL": 4}
# A claim and a completion each go to another thread and come back.
_HOPS_THERE_AND_BACK: Final = 2
_ALLOWED_US: Final = 50


def targets() -> Iterator[Target]:
    """Every row, in the order of the design."""
    yield Target(
        "async decorated call with MemoryChecker, over the bare coroutine",
        Goal.AT_MOST,
        15,
        "us",
        lambda f: _over(_find(f, "Memory", "MemoryChecker"), _find(f, "Memory", BARE)),
    )
    yield Target(
        f"RedisChecker, {TASKS} tasks, against idemkit's async at its best number of tasks",
        Goal.AT_LEAST,
        8,
        "x the rate",
        _against_idemkit,
    )
    for where in _SQL:
        yield from _of_tasks(where)
    for where, who in _LEASED.items():
        yield _of_threads(where, who)
    for where, who in _LEASED.items():
        yield from _of_one(where, who)
    for where in _SQL:
        yield Target(
            f"TransactionalSqlChecker on {where}, AsyncEngine, one at a time, against an AsyncSession by hand",
            Goal.AT_MOST,
            1.15,
            "x the time",
            lambda f, where=where: slower(  # type: ignore[misc]
                _find(f, where, "TransactionalSqlChecker, async"), _find(f, where, BY_HAND)
            ),
        )
    for where in ("RabbitMQ", "Kafka"):
        yield Target(
            f"Worker over {where}, async handlers that sleep 10 ms, concurrency {ASLEEP}",
            Goal.AT_LEAST,
            10_000,
            "messages/s",
            lambda f, where=where: _rate(_find(f, where, WORKER, ASLEEP)),  # type: ignore[misc]
            lambda f, where=where: _rate(_find(f, where, CLIENT, ASLEEP)),  # type: ignore[misc]
        )


def _of_tasks(where: str) -> Iterator[Target]:
    def many(figures: Figures) -> Figure | None:
        return _find(figures, where, "SqlChecker", TASKS)

    def one(figures: Figures) -> Figure | None:
        return _find(figures, where, "SqlChecker")

    yield Target(
        f"SqlChecker on {where}, {TASKS} tasks, against one",
        Goal.AT_LEAST,
        10,
        "x the rate",
        lambda f: faster(many(f), one(f)),
    )
    yield Target(
        f"SqlChecker on {where}, {TASKS} tasks, median of a call against that of one",
        Goal.AT_MOST,
        3,
        "x the time",
        lambda f: _median_of_calls(many(f), one(f)),
    )


def _of_threads(where: str, who: str) -> Target:
    return Target(
        f"{THREADS} threads in a Worker, {who} on {where}, against {APART}",
        Goal.AT_LEAST,
        _TIMES_IN_A_WORKER[where],
        "x the rate",
        lambda f: faster(
            _find(f, where, f"{WORKER}, {who}", THREADS),
            _find(f, where, f"{WORKER}, {who}, {APART}", THREADS),
        ),
    )


def _of_one(where: str, who: str) -> Iterator[Target]:
    yield Target(
        f"one task alone, {who} on {where}, over the synchronous call and four thread hops",
        Goal.AT_MOST,
        _ALLOWED_US,
        "us",
        lambda f: _over(
            _find(f, where, who),
            _find(f, where, f"{who}, {SYNC}"),
            *[_find(f, where, HOP)] * _HOPS_THERE_AND_BACK,
        ),
    )
    yield Target(
        f"one thread alone, {who} on {where}, against {APART}",
        Goal.AT_MOST,
        1.1,
        "x the time",
        lambda f: slower(_find(f, where, f"{who}, {SYNC}"), _find(f, where, f"{who}, {SYNC}, {APART}")),
    )


def _find(figures: Figures, where: str, who: str, size: int = 1) -> Figure | None:
    return figures.find(with_callers(where), who, threads=size)


def _over(figure: Figure | None, *bases: Figure | None) -> float | None:
    """How many microseconds a message takes more than the bases together: the median of the rounds' differences."""
    if figure is None or None in bases:
        return None
    rounds = zip(figure.rounds_us, *(base.rounds_us for base in bases if base), strict=True)
    more_us: list[float] = [ours - sum(theirs) for ours, *theirs in rounds]
    return statistics.median(more_us)


def _median_of_calls(figure: Figure | None, base: Figure | None) -> float | None:
    return figure.p50_us / base.p50_us if figure and base else None


def _against_idemkit(figures: Figures) -> float | None:
    theirs = [one for one in figures.all if (one.where, one.who) == (with_callers("Redis"), IDEMKIT)]
    best = min(theirs, key=lambda one: one.message_us, default=None)
    return faster(_find(figures, "Redis", "RedisChecker", TASKS), best)


def _rate(figure: Figure | None) -> float | None:
    return figure.rate if figure else None
